"""Exports the last round of a run that has ended, and was not rejected."""
