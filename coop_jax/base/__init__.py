"""What every stage may use: JAX's internals, budgets, errors, options, exact numbers."""
