"""Accepts a run that has ended, or rejects it; one that is accepted may take an alias of its root."""
