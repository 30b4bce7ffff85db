"""A step, and programs that replace it, jitted and compiled with the step's options."""
