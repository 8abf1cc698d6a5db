"""Built-in networks, losses and scores, and how a network is made of a state."""
