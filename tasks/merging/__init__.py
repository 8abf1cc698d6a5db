"""Merging networks: what runs on the workers, and what is kept."""
