"""A schedule to a program: segments, fences, and equations evaluated again."""
