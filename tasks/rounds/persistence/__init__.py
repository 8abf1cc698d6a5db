"""The steps of rounds with the store: their inputs are read before, and their results written after."""
