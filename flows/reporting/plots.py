"""Figures as files and as pictures on Prefect's pages."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from storage.places.addresses import Where, file_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = (".png", ".pdf", ".svg")


def check_plot(place: Where) -> Path:
    """The path of a figure to write; raises `UsageError` for a wrong suffix or a place that cannot be written."""
    return file_path(place, "a plot", PLOTS)


def as_markdown(figure: Figure, name: str) -> str:
    """A figure as Markdown text that holds the picture itself, as PNG in base64."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=80)
    data = base64.b64encode(image.getvalue()).decode()
    return f"![{name}](data:image/png;base64,{data})"
