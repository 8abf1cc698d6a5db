"""Verifying a run: what there must be, what lies there, and how they differ."""
