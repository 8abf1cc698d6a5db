"""Where figures are written, and how they reach Prefect's pages."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = (".png", ".pdf", ".svg")


def check_plot(place: Path) -> None:
    """Raise `UsageError` for a place where no figure can be written."""
    if place.suffix.lower() not in PLOTS:
        raise UsageError(f"{place}: a plot ends in {', '.join(PLOTS)}, not in {place.suffix!r}")
    if not place.parent.is_dir():
        raise UsageError(f"{place}: there is no folder {place.parent}; make it first")
    if place.is_dir():
        raise UsageError(f"{place} is a folder; name a file in it")


def as_markdown(figure: Figure, name: str) -> str:
    """A figure as a picture within markdown."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=80)
    data = base64.b64encode(image.getvalue()).decode()
    return f"![{name}](data:image/png;base64,{data})"
