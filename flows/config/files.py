"""Configurations in TOML files: fields and options of a training or a merge; paths are relative to the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from roundweave.flows.config.base import own_options
from roundweave.flows.config.plugins import plugin_classes
from roundweave.flows.config.train import TrainConfig
from roundweave.storage.errors import UsageError, failing_as, reason
from roundweave.storage.parsing import at_commas, from_toml
from roundweave.storage.places.base import join_address
from roundweave.storage.runs.names import STORED_ROUND
from roundweave.tasks.algorithms.table import TABLES
from roundweave.tasks.data.sources.table import SOURCES, named_source

PARTS = (*TABLES, "optimizer")
"""Options of an algorithm that may name a function in a file."""

RECIPES = (".toml", ".yml", ".yaml")
"""The ends of names of files that say how to merge; those of YAML are mergekit's."""

PLACED = {*own_options(TrainConfig), "plugin", *PARTS}
"""Keys whose texts may name a file."""

LISTS = {name for name, mark in own_options(TrainConfig).items() if mark.many}
"""Those that have several at commas."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file, with paths relative to the current folder. Raises `UsageError`."""
    if named_source(f"{path}") != f"{path}":
        raise UsageError(f"{path} holds data; give `--data {path}`")
    with failing_as(
        lambda error: UsageError(f"cannot read {path} ({reason(error)}); `roundweave init` writes one")
    ):
        values = from_toml(path.read_text(encoding="utf-8"))
    return {key: _seen(path.parent, key, value) for key, value in values.items()}


def read_recipe(path: str) -> dict[str, Any]:
    """Return the values of a merge in a TOML file, or in a file of mergekit. Raises `UsageError`."""
    if path.endswith(".toml"):
        return read_toml(Path(path))
    from roundweave.flows.config.merging.mergekit import read_mergekit  # a training has no use for it

    return read_mergekit(Path(path))


def write_toml(path: Path, config: TrainConfig) -> None:
    """Write a configuration's given values to a TOML file, with absolute paths. Raises `UsageError`."""
    with failing_as(lambda error: UsageError(f"cannot write {path} ({reason(error)})")):
        path.write_text(tomli_w.dumps(from_anywhere(config)), "utf-8")


def from_anywhere(config: TrainConfig) -> dict[str, Any]:
    """Return a configuration's given values, without defaults, as JSON or TOML types and with absolute paths."""
    values = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return {key: _seen(Path.cwd(), key, value) for key, value in values.items()}


def _seen(folder: Path, key: str, value: Any) -> Any:
    """The value that a configuration file of this folder gives a key, its paths joined to the folder's path."""
    match key, value:
        case "algorithm", {"name": name}:
            parts = {option: _seen(folder, option, given) for option, given in value.items() if option in PARTS}
            return value | parts | {"name": _seen(folder, key, name)}
        case _, str() | list() if key in LISTS or (type(value) is list and key in ("data", "networks", "grams")):
            placed = {"networks": _checkpoint, "grams": _checkpoint}.get(key, _place)
            return [placed(folder, name.strip()) if isinstance(name, str) else name for name in at_commas(value)]
        case "plugins", str() | list():
            value = [_seen(folder, "plugin", one) for one in at_commas(value)]
        case "plugin", {"name": str() as name}:
            value = value | {"name": _place(folder, name)}
        case "slices", list():
            value = [_seen(folder, "slice", part) for part in value]
        case "slice", {"network": str() as network}:
            value = value | {"network": _checkpoint(folder, network)}
        case _, str() if key in PLACED:
            return _place(folder, value)
        case "root" | "certificates" | "start_from" | "base" | "out" | "plot", str():
            return _checkpoint(folder, value) if key in ("start_from", "base") else join_address(folder, value)
        case "scheduler" | "partition_options", str() if value.endswith((".json", ".toml")):
            kind, _, file = value.rpartition(":")
            return f"{kind}:{folder / file}" if kind else str(folder / file)
    plugin = next((plugin for plugin in plugin_classes() if key in plugin.model_fields), None)
    return plugin.seen(folder, key, value) if plugin else value


def _checkpoint(folder: Path, place: str) -> str:
    """Join the file of a network to the folder; a stored round is unchanged."""
    return place if STORED_ROUND.fullmatch(place) else join_address(folder, place)


def _place(folder: Path, text: str) -> str:
    """Join ``FILE.py:function``, ``csv:FILE`` or ``transformers:FOLDER`` to the folder; names are unchanged."""
    text = named_source(text)
    place, _, function = text.rpartition(":")
    if place.endswith(".py"):
        return f"{folder / place}:{function}"
    name, _, place = text.partition(":")
    return f"{name}:{join_address(folder, place)}" if place and name in (*SOURCES, "transformers") else text
