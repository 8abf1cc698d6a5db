"""Solves the layers of a merged network for what its parents' layers gave, without labels and gradients."""
