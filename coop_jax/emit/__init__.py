"""From a schedule to a program: segments, fences, and recomputed equations."""
