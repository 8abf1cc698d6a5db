"""The store of a run: its hierarchy, its commits, its lease."""
