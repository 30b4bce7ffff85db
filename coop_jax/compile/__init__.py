"""A step and programs in its place, jitted and compiled with the step's own options."""
