"""Offers each tutorial as a notebook that Jupyter opens, in `tutorials/` of the built site."""

from __future__ import annotations

from pathlib import Path

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.application import Sphinx

LINK = '<a href="{name}.ipynb" download>Download this page as a notebook</a> and run each cell yourself.\n\n'


def offer(app: Sphinx, page: str, source: list[str]) -> None:
    """Write the notebook of a page with code cells beside the page, and link it below the title."""
    folder, _, name = page.rpartition("/")
    if folder != "tutorials" or "{code-cell}" not in source[0] or app.builder.format != "html":
        return
    place = Path(app.outdir, folder, f"{name}.ipynb")
    place.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(read_myst_markdown_notebook(source[0]), place)
    head, title, rest = source[0].partition("\n# ")
    heading, _, body = rest.partition("\n\n")
    source[0] = f"{head}{title}{heading}\n\n{LINK.format(name=name)}{body}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx call `offer` as it reads each page."""
    app.connect("source-read", offer)
    return {"parallel_read_safe": True}
