"""The tuned values of the package and of the core: what they are for, and how to change them."""
