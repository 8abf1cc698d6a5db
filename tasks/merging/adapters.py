"""Adapters of low rank (LoRA, Hu et al. 2022), as peft writes them, side by side in one that is their mean.

The mean of matrices A and the mean of matrices B do not give the mean of the changes B A. So the merged adapter
has all rows of A and all columns of B: its rank is the sum of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from roundweave.storage.checkpoints.folders import ADAPTER_CONFIG, folder_config
from roundweave.storage.errors import CheckpointError
from roundweave.storage.values.lazy import LazyTensors, known_specs
from roundweave.storage.values.tensors import TensorSpec
from roundweave.tasks.matching.groups import Tensors

AXES = {"lora_A": 0, "lora_B": 1, "lora_embedding_A": 0, "lora_embedding_B": 1}
"""The axis of the rank, by the part of a tensor's name that says which matrix it is."""

TAKEN = {
    *("peft_type", "task_type", "base_model_name_or_path", "revision"),
    *("r", "lora_alpha", "bias", "fan_in_fan_out"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("megatron_core", "qalora_group_size"),  # settings of what is refused where it is used
}
"""Members of an adapter's configuration that are understood, besides `NO_MATTER_HERE`; others must be empty."""

NO_MATTER_HERE = ("peft_version", "inference_mode", "lora_dropout", "auto_mapping", "init_lora_weights")
"""Members in which adapters may differ."""

BEGUN_AS_ZERO = (None, True, False, "gaussian", "orthogonal")
"""The values of `init_lora_weights` that leave the network below as it is; others change it by the rank."""


def adapter_config(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the configuration of the adapters in folders, side by side.

    Raises `CheckpointError` if they do not fit.
    """
    first, *others = (folder_config(folder, ADAPTER_CONFIG) for folder in folders)
    for folder, config in zip(folders, (first, *others), strict=True):
        if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none":
            raise CheckpointError(f"{folder / ADAPTER_CONFIG} is no LoRA without biases; only these can be merged")
        if own := next((name for name in config if config[name] and name not in {*TAKEN, *NO_MATTER_HERE}), None):
            raise CheckpointError(f"{folder / ADAPTER_CONFIG} has {own}, and only plain LORA is merged")
        if missing := next((name for name in ("r", "lora_alpha") if name not in config), None):
            raise CheckpointError(f"{folder / ADAPTER_CONFIG} has no {missing}; save the adapter again")
        if (begun := config.get("init_lora_weights")) not in BEGUN_AS_ZERO:
            changed = f"has init_lora_weights = {begun}, which changes the network below"
            raise CheckpointError(f"{folder / ADAPTER_CONFIG} {changed}; save the adapter as a plain one")
        for name in (name for name in first if name in config and name not in NO_MATTER_HERE):
            if _sorted(config[name]) != _sorted(first[name]):
                differ = f"{name} is {config[name]}, but {first[name]} in {folders[0] / ADAPTER_CONFIG}"
                raise CheckpointError(f"{folder / ADAPTER_CONFIG}: {differ}; merge adapters of one kind")
    return first | {name: first[name] * len(folders) for name in ("r", "lora_alpha")}


def _sorted(value: Any) -> Any:
    """Return a list of names in one order, as peft writes them in any; other values as they are."""
    return sorted(map(str, value)) if isinstance(value, list) else value


def side_by_side(states: Sequence[Tensors]) -> list[LazyTensors]:
    """Adapters' tensors, padded so that their weighted mean has all ranks, and as change the mean of the changes.

    Each has all rows of A, (ranks, in), and its own columns of B, (out, ranks), between zeros. Raises
    `CheckpointError` for a tensor that is neither.
    """
    every = [{spec.name: spec for spec in known_specs(state)} for state in states]
    if odd := next((name for specs in every for name in specs if _matrix(name) is None), None):
        raise CheckpointError(f"{odd!r} is no LoRA matrix; only LoRA can be merged")
    if odd := next((name for specs in every for name in specs.keys() ^ every[0].keys()), None):
        raise CheckpointError(f"only some of the adapters have {odd!r}; merge adapters of one kind")
    padded = tuple(_padded(spec, [specs[name] for specs in every]) for name, spec in every[0].items())
    return [LazyTensors(tuple(every[0]), partial(_read, states, number), padded) for number in range(len(states))]


def _matrix(name: str) -> str | None:
    return next((matrix for matrix in AXES if f".{matrix}" in name), None)


def _padded(spec: TensorSpec, every: Sequence[TensorSpec]) -> TensorSpec:
    axis = AXES[_matrix(spec.name) or ""]
    ranks = sum(each.shape[axis] for each in every)
    return replace(spec, shape=(*spec.shape[:axis], ranks, *spec.shape[axis + 1 :]))


def _read(states: Sequence[Tensors], number: int, name: str) -> torch.Tensor:
    """Return one matrix of an adapter with the ranks of all."""
    axis, own = AXES[_matrix(name) or ""], [state[name] for state in states]
    parts = own if axis == 0 else [each if i == number else torch.zeros_like(each) for i, each in enumerate(own)]
    return torch.cat([part.to(own[number].dtype) for part in parts], axis)
