"""Stacked training: several partitions are trained as one batched network, each as if it were alone."""
