"""Stored runs as a notebook sees them, and checkpoints."""
