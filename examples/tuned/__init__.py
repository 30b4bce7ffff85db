"""Tuned values of the package and of the core: their purposes, and how to change them."""
