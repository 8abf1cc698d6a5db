"""Averages of networks' tensors, each a frozen value with its options, and recipes: which tensor has which."""
