"""Verify a run: compare every file that is there with what the commit records say must be there."""
