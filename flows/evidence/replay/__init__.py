"""Replaying stored rounds: the same steps on what is stored, and whether the bits are the same."""
