"""Base: JAX's internals, budgets, errors, options, exact numbers, for every stage."""
