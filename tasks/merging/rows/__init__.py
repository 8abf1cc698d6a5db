"""Rows that networks have for each token or label, in one order."""
