"""A program and what XLA stores of it to the graph that the planner works on."""
