"""Stored runs kept in order: what is kept of them, in how many files, and copies."""
