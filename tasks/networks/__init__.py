"""Reference networks, losses, and how a state becomes a network."""
