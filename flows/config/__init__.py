"""The configuration, and what its names stand for."""
