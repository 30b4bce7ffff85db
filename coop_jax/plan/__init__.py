"""A graph and a pool to a validated schedule: the door to the C++ core."""
