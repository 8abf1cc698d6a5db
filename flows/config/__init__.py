"""The configuration of runs and merges, and the objects that its names stand for."""
