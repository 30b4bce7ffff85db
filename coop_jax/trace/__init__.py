"""A training step to one flat program: inlined, common subexpressions merged, priced."""
