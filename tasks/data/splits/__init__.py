"""Splits: the held-out examples, and the examples of each partition."""
