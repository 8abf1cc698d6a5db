"""Applies, which are outer (server) optimizers: they make the next state of a state and a reduced update."""
