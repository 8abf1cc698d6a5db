"""Tensor parallelism: several ranks share one network, and each has a part of the weights of some layers."""
