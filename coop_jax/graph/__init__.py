"""A program and its stored values to the graph that the planner works on."""
