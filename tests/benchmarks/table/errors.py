"""Why a contender has no reading."""

from __future__ import annotations


class NoReading(Exception):
    """Says in one line what is missing or went wrong."""
