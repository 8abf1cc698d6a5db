"""The steps of rounds with the store: what they need is read before, and what they gave is written after."""
