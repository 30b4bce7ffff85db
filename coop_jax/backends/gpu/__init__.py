"""XLA:GPU alone."""
