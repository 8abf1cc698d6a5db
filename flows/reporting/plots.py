"""Figures as files."""

from __future__ import annotations

from pathlib import Path

from roundweave.storage.places.base import Where, file_path

PLOTS = (".png", ".pdf", ".svg")


def check_plot(place: Where) -> Path:
    """The path of a figure to write; raises `UsageError` for a wrong suffix or a place that cannot be written."""
    return file_path(place, "a plot", PLOTS)
