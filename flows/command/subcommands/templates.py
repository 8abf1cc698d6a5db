"""The files that `roundweave init` writes: a commented configuration, and a model and data of one's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from flows.command.errors import clear_errors
from flows.config.algorithms import options_of
from flows.config.train import Execution, Experiment
from storage.errors import UsageError

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


def init_command(
    folder: Annotated[Path, typer.Argument(help="where to write them")] = Path(),
) -> None:
    """Write a commented train.toml and mine.py to start from."""
    with clear_errors():
        for path in write_templates(folder):
            typer.echo(f"wrote {path}")
        typer.echo(f"now: roundweave train {shlex.quote(str(folder / 'train.toml'))}")


def write_templates(folder: Path) -> list[Path]:
    """Write both files; raises `UsageError` rather than replace one."""
    files = {folder / "train.toml": config_text(), folder / "mine.py": MINE}
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists already; move it, or give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)


def config_text() -> str:
    """Every field with its meaning; those that a first run needs are set, the others show their defaults."""
    algorithm = GIVEN["algorithm"]
    parts: dict[str, Mapping[str, FieldInfo]] = {
        "The experiment: what the run is.": Experiment.model_fields,
        f"The options of {algorithm}; those of others: roundweave list algorithms.": options_of(str(algorithm)),
        "The execution: how it runs.": Execution.model_fields,
    }
    lines = ["# roundweave train train.toml; paths go from this file.", ""]
    for title, fields in parts.items():
        lines += [f"# {title}", ""]
        for name, field in fields.items():
            lines += [f"# {field.description}", _line(name, field), ""]
    return "\n".join(lines)


def _line(name: str, field: FieldInfo) -> str:
    if name in GIVEN:
        return f"{name} = {_toml(GIVEN[name])}"
    return f"# {name} = {_toml(field.get_default(call_default_factory=True))}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(str(value) if isinstance(value, Path) else value) if value is not None else "…"
