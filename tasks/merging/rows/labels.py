"""Networks that tell other labels apart: the rows of their heads are put in one order of labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from roundweave.storage.errors import ModelError, UsageError
from roundweave.tasks.merging.rows.orders import Numbers, RowOrder, axes_of, check_of_transformers, rows_of
from roundweave.tasks.networks.objective import ModelSpec

NAMES = "id2label"
"""The member of a configuration that has the names of labels by their numbers."""

UNNAMED = re.compile(r"LABEL_\d+")
"""Matches what transformers calls a label that nobody named."""


def find_labels(
    folders: Sequence[Path], configs: Sequence[Mapping[str, Any]], choice: Literal["union", "first"] | None
) -> RowOrder | None:
    """Return how the rows of the heads of the folders' networks are put in order.

    None if they have the same labels.

    Raises `UsageError` for other labels without a choice, or without names by which they are the same or not.
    """
    every = [_labels(config) for config in configs]
    other = next((number for number, labels in enumerate(every) if labels != every[0]), None)
    if other is None:
        return None
    pair = f"{folders[0]} and {folders[other]}"
    if choice is None:
        raise UsageError(f"{pair} have different labels; give --labels union, or first for those of the first")
    unnamed = next((name for labels in every for name in labels if UNNAMED.fullmatch(name)), None)
    if unnamed:
        raise UsageError(
            f"{pair} have different labels, and {unnamed} has no name; name all in {NAMES} of config.json"
        )
    merged = dict(every[0])
    for name in (name for labels in every if choice == "union" for name in labels):
        merged.setdefault(name, len(merged))
    rows = tuple(rows_of(labels, merged, len(merged)) for labels in every)
    options = {NAMES: {str(number): name for name, number in merged.items()}, "label2id": merged}
    return RowOrder(rows, _of_labels, options)


def _labels(config: Mapping[str, Any]) -> Numbers:
    """Return the number of each label by its name; without names there are two, as transformers has it."""
    return {str(name): int(number) for number, name in (config.get(NAMES) or {0: "LABEL_0", 1: "LABEL_1"}).items()}


def _of_labels(network: Any) -> dict[str, int]:
    """Return the axes of tensors with a row for each label: those that would have one more with one label more."""
    check_of_transformers(network)
    config = deepcopy(network.config)
    config.num_labels += 1
    with torch.device("meta"):
        return axes_of(network, type(network)(config))


def union_of_labels(every: Sequence[Sequence[str]], merged: Sequence[str], model: ModelSpec) -> RowOrder:
    """How the rows of networks of runs, each with its own labels in order, are put in the merged one's order."""
    numbers = _numbered(merged)
    rows = tuple(rows_of(_numbered(labels), numbers, len(merged)) for labels in every)
    return RowOrder(rows, partial(_of_outputs, model), {})


def _numbered(labels: Sequence[str]) -> Numbers:
    return {name: number for number, name in enumerate(labels)}


def with_a_row_for_each_output(model: ModelSpec, network: nn.Module) -> dict[str, int]:
    """The axes of tensors of a model's network that would have one row more with one output more, by name."""
    return axes_of(network, replace(model, outputs=model.outputs + 1).outlined())


def _of_outputs(model: ModelSpec, network: nn.Module) -> dict[str, int]:
    names = with_a_row_for_each_output(model, network)
    if not names:
        raise ModelError(f"model {model.name} has as many outputs for any labels, so its rows are of none of them")
    return names
