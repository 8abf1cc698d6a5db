"""`roundweave init`, `roundweave list` and `roundweave split`: the subcommands for a first start."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic.fields import FieldInfo

from flows.command.common import Json, console, output, say, table
from flows.command.options import given, with_options
from flows.config.algorithms import options_of
from flows.config.resolving import deal
from flows.config.train import Dealing, Execution, Experiment
from flows.reporting.plots import check_plot
from storage.errors import UsageError
from tasks.algorithms.preset import APPLIES, MAPS
from tasks.algorithms.table import ABOUT
from tasks.applies.schedules import SCHEDULES
from tasks.data.distribution import draw_counts, label_counts
from tasks.data.sources.table import SOURCES
from tasks.data.splits.deals import SPLITS
from tasks.networks.reference import MODELS
from tasks.networks.scores import LOSSES, SCORES
from tasks.reduces.table import REDUCES
from tasks.tables import Table, spelled, unknown

if TYPE_CHECKING:
    import pandas as pd

MINE = '''"""Your own data, model and loss: --data mine.py:data --model mine.py:model --loss mine.py:loss."""

import torch
from torch import nn


def data():
    """(inputs, targets), or ((inputs, targets), (held_out_inputs, held_out_targets)); numpy or torch.

    With two parameters, data(partition, partitions), it returns one partition alone.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 20, generator=generator)
    return inputs, (inputs[:, :2].sum(1) > 0).long()


def model():
    """Any torch.nn.Module."""
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def loss(outputs, targets):
    """A number to minimise: the mean over the examples."""
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
'''

GIVEN = {"data": "mine.py:data", "model": "mine.py:model", "algorithm": "fed_avg", "partitions": 4, "rounds": 10}
"""The fields that the configuration of `roundweave init` sets."""

SHOWN_LABELS = 12
"""The most labels that get a column each in the table of a split; of more labels only the number is shown."""


def init_command(
    folder: Annotated[Path, typer.Argument(help="where to write them")] = Path(),
) -> None:
    """Write a commented train.toml and mine.py to start from."""
    files = {folder / "train.toml": _config_text(), folder / "mine.py": MINE}
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists already; move it, or give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}")
    typer.echo(f"now: roundweave train {shlex.quote(str(folder / 'train.toml'))}")


def _config_text() -> str:
    """The text of train.toml: every field with its description; those in `GIVEN` are set, others commented out."""
    algorithm = str(GIVEN["algorithm"])
    parts: dict[str, Mapping[str, FieldInfo]] = {
        "The experiment: what the run is.": Experiment.model_fields,
        f"The options of {algorithm}; those of others: roundweave list algorithms.": options_of(algorithm),
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
    table: Annotated[str | None, typer.Argument(help="one of the tables; default: all")] = None,
    as_json: Json = False,
) -> None:
    """List what there is by name: algorithms with their options, data, models and the rest."""
    every = _tables()
    if table is not None and table not in every:
        raise unknown("table", table, every)
    chosen = {name: rows for name, rows in every.items() if table in (None, name)}
    output(as_json, chosen, _print_tables, chosen)


def _tables() -> dict[str, list[dict[str, str]]]:
    """All tables by title; each has a row for each name with its description, algorithms also with options."""
    entries = {
        "data": SOURCES,
        "splits": SPLITS,
        "maps": MAPS,
        "reduces": REDUCES,
        "applies": APPLIES,
        "schedules": SCHEDULES,
    }
    functions: dict[str, Mapping[str, Callable[..., Any]]] = {"models": MODELS, "losses": LOSSES, "scores": SCORES}
    return {
        "algorithms": [{"name": n, "what it is": about, "options": _options(n)} for n, about in ABOUT.items()],
        **{title: _entries(table) for title, table in entries.items()},
        **{title: _documented(table) for title, table in functions.items()},
    }


def _entries(table: Table) -> list[dict[str, str]]:
    written = zip(spelled(table), table.values(), strict=True)
    return [{"name": name, "what it is": entry.about} for name, entry in written]


def _documented(functions: Mapping[str, Callable[..., Any]]) -> list[dict[str, str]]:
    """A row for each function: its name, and the first line of its docstring."""
    lines = {name: (inspect.getdoc(value) or "").partition("\n")[0] for name, value in functions.items()}
    return [{"name": name, "what it is": line.rstrip(".")} for name, line in lines.items()]


def _options(algorithm: str) -> str:
    """An algorithm's options with defaults; if they resemble those of fed_avg, only the differences."""
    options = {name: field.default for name, field in options_of(algorithm).items()}
    common = {name: field.default for name, field in options_of("fed_avg").items()}
    if algorithm == "fed_avg" or "local_steps" not in options:
        return _listed(options)
    own = {name: value for name, value in options.items() if name not in common or common[name] != value}
    lacking = ", ".join(name for name in common if name not in options)
    return "as fed_avg" + (f", {_listed(own)}" if own else "") + (f"; without {lacking}" if lacking else "")


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _print_tables(tables: Mapping[str, list[dict[str, str]]]) -> None:
    out = console(wide=False)
    for title, rows in tables.items():
        out.print(table(rows, title=title))
        out.print()


@with_options(Dealing, without=("resplit_every",))
def split_command(
    plot: Annotated[Path | None, typer.Option(help="where to draw it: .png, .pdf, .svg")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Show how many examples of each label a split gives to each partition."""
    if plot:
        check_plot(plot)
    config = Dealing(**given(options, Dealing))
    counts = label_counts(deal(config))
    if plot:
        draw_counts(counts).figure.savefig(plot, dpi=120)  # type: ignore[union-attr]
    rows = counts.rename(columns=str).to_dict("records")
    output(as_json, {"partitions": rows, "plot": plot and str(plot)}, _print_split, counts, config.split, plot)


def _print_split(counts: pd.DataFrame, split: str, plot: Path | None) -> None:
    labels = counts.drop(columns="size")
    shown = labels if len(labels.columns) <= SHOWN_LABELS else (labels > 0).sum(axis=1).to_frame("labels")
    rows = [
        {"partition: label": partition, **{name: count or "·" for name, count in row.items()}, "examples": size}
        for (partition, row), size in zip(shown.iterrows(), counts["size"], strict=True)
    ]
    console().print(table(rows, right=True))
    say(f"{counts['size'].sum()} examples to train on, {split}, in {len(counts)} partitions")
    if plot:
        say(f"drawn in {plot}")
