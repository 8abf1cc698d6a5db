"""`roundweave init`, `roundweave list` and `roundweave split`: the subcommands for a first start."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic.fields import FieldInfo

from roundweave.flows.config.algorithms import option_fields
from roundweave.flows.config.experiment import Dealing, Experiment
from roundweave.flows.config.merging.recipes import ABOUT as ABOUT_AVERAGES
from roundweave.flows.config.merging.recipes import options_with_defaults
from roundweave.flows.config.plugins import plugin_classes
from roundweave.flows.config.train import Execution
from roundweave.flows.terminal.common import Json, TextTable, console, output, say
from roundweave.flows.terminal.options import with_options
from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.applies.schedules import SCHEDULES
from roundweave.tasks.algorithms.reduces.table import REDUCES
from roundweave.tasks.algorithms.table import ABOUT, APPLIES, MAPS
from roundweave.tasks.data.sources.table import SOURCES
from roundweave.tasks.data.splits.deals import SPLITS
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.networks.scores import LOSSES, SCORES
from roundweave.tasks.own_code.tables import spelled, unknown

if TYPE_CHECKING:
    import pandas as pd

GIVEN = {"data": "mine.py:data", "model": "mine.py:model", "algorithm": "fed_avg", "partitions": 4, "rounds": 10}
"""The fields that the configuration of `roundweave init` sets."""

SHOWN_LABELS = 12
"""The most labels that get a column each in the table of a split; of more labels only the number is shown."""


def init_command(
    folder: Annotated[Path, typer.Argument(help="folder to write to")] = Path(),
) -> None:
    """Write a commented train.toml and a mine.py to start from."""
    mine = Path(__file__).with_name("mine.txt").read_text(encoding="utf-8")
    files = {folder / "train.toml": _config_text(), folder / "mine.py": mine}
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists already; move it, or give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}")
    typer.echo(f"next: roundweave train {shlex.quote(str(folder / 'train.toml'))}")


def _config_text() -> str:
    """The text of train.toml: every field with its description; those in `GIVEN` are set, others commented out."""
    algorithm = str(GIVEN["algorithm"])
    parts: dict[str, Mapping[str, FieldInfo]] = {
        "The experiment: what the run is.": Experiment.model_fields,
        f"The options of {algorithm}; those of others: roundweave list algorithms.": option_fields(algorithm),
        "The execution: how it runs.": Execution.model_fields,
    }
    lines = ["# roundweave train train.toml; paths go from this file.", ""]
    for title, fields in parts.items():
        lines += [f"# {title}", ""]
        for name, field in fields.items():
            default = field.get_default(call_default_factory=True)
            line = f"{name} = {_toml(GIVEN[name])}" if name in GIVEN else f"# {name} = {_toml(default)}"
            lines += [f"# {field.description}", line, ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + "}"
    return json.dumps(str(value) if isinstance(value, Path) else value) if value is not None else "…"


def list_command(
    table: Annotated[str | None, typer.Argument(help="table, such as algorithms; default: all")] = None,
    as_json: Json = False,
) -> None:
    """List all names: algorithms and averages with their options, data, splits, models, losses and more."""
    every = tables()
    if table is not None and table not in every:
        raise unknown("table", table, every)
    chosen = {name: rows for name, rows in every.items() if table in (None, name)}
    output(as_json, chosen, _print_tables, chosen)


def tables() -> dict[str, list[dict[str, str]]]:
    """All tables by title; each has a row for each name: what it is; with options of algorithms and averages."""
    entries = {
        "data": SOURCES,
        "splits": SPLITS,
        "maps": MAPS,
        "reduces": REDUCES,
        "applies": APPLIES,
        "schedules": SCHEDULES,
        **{title: table for plugin in plugin_classes() for title, table in plugin.tables.items()},
    }
    functions = {"models": MODELS, "losses": LOSSES, "scores": SCORES}
    about = {
        title: dict(zip(spelled(table), (entry.about for entry in table.values()), strict=True))
        for title, table in entries.items()
    }
    for title, named in functions.items():
        about[title] = {name: _first_line(value) for name, value in named.items()}
    return {
        "algorithms": [{"name": n, "what it is": what, "options": _options(n)} for n, what in ABOUT.items()],
        **{t: [{"name": n, "what it is": what} for n, what in rows.items()] for t, rows in about.items()},
        "averages": [
            {"name": n, "what it is": what, "options": options_with_defaults(n)}
            for n, what in ABOUT_AVERAGES.items()
        ],
        "plugins": [
            {"name": each.label(), "what it is": _first_line(each), "options": _with_defaults(each.model_fields)}
            for each in plugin_classes()
        ],
    }


def _first_line(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "").partition("\n")[0].rstrip(".")


def _with_defaults(fields: Mapping[str, FieldInfo]) -> str:
    """Options by name, and their defaults where they stand for something."""
    return ", ".join(f"{name}={field.default}" if field.default else name for name, field in fields.items())


def _options(algorithm: str) -> str:
    """An algorithm's options with defaults; if they resemble those of fed_avg, only the differences."""
    options, common = (
        {name: f"{name}={field.default}" for name, field in option_fields(each).items()}
        for each in (algorithm, "fed_avg")
    )
    if algorithm == "fed_avg" or "local_steps" not in options:
        return ", ".join(options.values())
    own = ["as fed_avg", *(text for name, text in options.items() if common.get(name) != text)]
    lacking = ", ".join(name for name in common if name not in options)
    return ", ".join(own) + (f"; without {lacking}" if lacking else "")


def _print_tables(tables: Mapping[str, list[dict[str, str]]]) -> None:
    out = console(wide=False)
    for title, rows in tables.items():
        out.print(title, style="bold")
        out.print(TextTable(rows))
        out.print()


@with_options(Dealing, without=("resplit_every",))
def split_command(
    plot: Annotated[Path | None, typer.Option(help="file for a plot: .png, .pdf, .svg")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Show how many examples of each label each partition gets."""
    from roundweave.flows.planning.completing import deal
    from roundweave.storage.runs.figures import check_plot
    from roundweave.tasks.data.distribution import draw_counts, label_counts

    if plot:
        check_plot(plot)
    config = Dealing(**options)
    dealt = deal(config)
    if dealt.placement.stays:
        places = f"{dealt.placement.kind}s"
        raise UsageError(f"the examples of {places} are read there alone; leave {places} out to split them here")
    counts = label_counts(dealt)
    if plot:
        draw_counts(counts).figure.savefig(plot, dpi=120)  # type: ignore[union-attr]
    rows = counts.rename(columns=str).to_dict("records")
    names = {"names": [*counts.index]} if counts.index.inferred_type == "string" else {}
    table = {"partitions": rows, **names, "plot": plot and str(plot)}
    output(as_json, table, _print_split, counts, config.split, plot)


def _print_split(counts: pd.DataFrame, split: str, plot: Path | None) -> None:
    labels = counts.drop(columns="size")
    shown = labels if len(labels.columns) <= SHOWN_LABELS else (labels > 0).sum(axis=1).to_frame("labels")
    rows = [
        {"partition: label": partition, **{name: count or "·" for name, count in row.items()}, "examples": size}
        for (partition, row), size in zip(shown.iterrows(), counts["size"], strict=True)
    ]
    console().print(TextTable(rows, right=True))
    say(f"{counts['size'].sum()} examples to train on, {split}, in {len(counts)} partitions")
    if plot:
        say(f"drawn in {plot}")
