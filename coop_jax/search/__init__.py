"""The search for a step under a budget: plan, compile, read XLA's figure, plan again."""
