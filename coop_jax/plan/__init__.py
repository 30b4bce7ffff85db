"""A graph and a pool to a validated schedule: the interface to the C++ core."""
