"""Applies: outer optimizers."""
