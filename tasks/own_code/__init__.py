"""The user's own functions: their text, the modules that it needs, and tables of names beside it."""
