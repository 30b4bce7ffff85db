"""Plan, compile, read XLA's figure, plan again: the search for a step under a budget."""
