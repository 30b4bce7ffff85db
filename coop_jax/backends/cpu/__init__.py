"""XLA:CPU alone."""
