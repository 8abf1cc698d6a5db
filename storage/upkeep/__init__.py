"""Maintenance of stored runs: verifying, pruning, copying and removing them."""
