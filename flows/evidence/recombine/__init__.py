"""Reducing stored rounds again: in another way, or without some partitions."""
