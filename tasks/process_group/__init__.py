"""Processes that stay and talk to each other: rounds of milliseconds."""
