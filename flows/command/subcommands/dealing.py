"""`roundweave split`: how examples would be dealt to partitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from flows.command.arguments import Json
from flows.command.errors import clear_errors, print_json
from flows.command.options import given, with_options
from flows.command.printing.console import console
from flows.config.resolving import deal
from flows.config.train import Dealing
from flows.reporting.plots import check_plot
from tasks.data.distribution import draw_counts, label_counts

if TYPE_CHECKING:
    import pandas as pd

SHOWN_LABELS = 12
"""So many labels have a column each; of more, only how many there are is told."""


@with_options(Dealing, without=("resplit_every",))
def split_command(
    plot: Annotated[Path | None, typer.Option(help="where to draw it: .png, .pdf, .svg")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Show how many examples of each label a split gives to each partition."""
    with clear_errors(as_json):
        if plot:
            check_plot(plot)
        config = Dealing(**given(options, Dealing))
        counts = label_counts(deal(config))
        if plot:
            draw_counts(counts).figure.savefig(plot, dpi=120)  # type: ignore[union-attr]
        if as_json:
            print_json({"partitions": counts.rename(columns=str).to_dict("records"), "plot": plot and str(plot)})
        else:
            _print(counts, config.split, plot)


def _print(counts: pd.DataFrame, split: str, plot: Path | None) -> None:
    out = console()
    labels = counts.drop(columns="size")
    shown = labels if len(labels.columns) <= SHOWN_LABELS else (labels > 0).sum(axis=1).to_frame("labels")
    table = Table("partition: label", *map(str, shown.columns), "examples", box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for (partition, row), size in zip(shown.iterrows(), counts["size"], strict=True):
        table.add_row(str(partition), *(str(count or "·") for count in row), str(size))
    out.print(table)
    out.print(f"{counts['size'].sum()} examples to train on, {split}, in {len(counts)} partitions")
    if plot:
        out.print(f"drawn in {plot}", soft_wrap=True)
