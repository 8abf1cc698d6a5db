"""Asynchronous rounds: in which order updates arrive at a parameter server, and how it applies each of them."""
