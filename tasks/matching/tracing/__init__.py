"""Traces a network to find the units along the axes of its tensors."""
