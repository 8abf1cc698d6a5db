"""Applies: outer (server) optimizers, which make the next state from a state and a reduced update."""
