"""Starts Prefect's API server where the user has none."""
