"""Frontends: steps as users of Flax NNX and Equinox write them.

Both libraries have a `jit` of their own around `jax.jit`, which separates arrays from
objects before a call and puts them together after it. A frontend runs that code as it is,
with a budgeted function in place of the jitted one inside of it. Neither library is
imported here unless the program has done so.
"""
