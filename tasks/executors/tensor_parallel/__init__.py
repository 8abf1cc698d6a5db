"""Ranks, in processes of their own, that share one network: each has its share of every large tensor."""
