"""Dask clusters: connecting to them, starting them, and waiting for their work."""
