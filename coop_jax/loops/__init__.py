"""Loops: a `scan` and the `scan` of its gradient, planned as a pair.

After differentiation a scan over layers is a forward loop that stacks residuals and a
backward loop that reads them. Which values of an iteration are stacked, and which the
backward loop makes again, is decided here; the straight line around loops is planned as
without them.
"""
