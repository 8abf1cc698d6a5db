"""The values that are stored: tensors, layouts, states, updates, and their digests."""
