"""Reduces: one update of many."""
