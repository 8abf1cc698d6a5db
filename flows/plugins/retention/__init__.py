"""Removes older runs of a schedule once a run has ended."""
