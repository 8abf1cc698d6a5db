"""Decides what a configuration trains before any process starts; then what the examples decide."""
