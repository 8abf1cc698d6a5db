"""Splits: which examples are held out, and which partition gets which of the others."""
