"""Saved: plans as files: what a plan decides, and the step that it is of."""
