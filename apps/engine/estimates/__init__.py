"""Estimates made from what was measured. What was not measured is None, never 0."""
