"""Storing runs: the values that rounds exchange, the zarr hierarchy that holds them, and views for notebooks."""
