"""Writes the merged network: to a file, or to a folder that transformers opens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from roundweave.flows.stored import open_run
from roundweave.storage.checkpoints.files import SAFETENSORS
from roundweave.storage.checkpoints.folders import (
    ADAPTER,
    ADAPTER_CONFIG,
    CONFIG,
    TOKENIZER,
    copy_beside,
    files_beside,
    folder_config,
    new_folder,
    write_json,
    write_shards,
)
from roundweave.storage.checkpoints.writing import CARD, MARK, check_folder, is_folder, write_checkpoint
from roundweave.storage.errors import CheckpointError, failing_as, reason
from roundweave.storage.runs.opening import check_finite, open_checkpoint
from roundweave.storage.values.lazy import LazyTensors, changed, known_specs, picked
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.adapters import adapter_config
from roundweave.tasks.merging.slices import sliced_config
from roundweave.tasks.networks.pretrained import whole_config
from roundweave.tasks.numerics.pinning import limited

if TYPE_CHECKING:
    from roundweave.flows.merging.preparing import MergePlan

DTYPE = ("dtype", "torch_dtype")
"""The members of a configuration that name the type of the tensors, in versions 5 and 4 of transformers."""


def write_out(plan: MergePlan, merged: Tensors) -> None:
    """Write the merged tensors where the configuration says. Raises `CheckpointError` if one is not finite."""
    # Threads of torch would wait for one another at each of many small blocks, which takes longer than one alone.
    with limited(threads=1):
        _write(plan, plan.config.out or "", _checked(plan, merged))


def _write(plan: MergePlan, out: str, tensors: LazyTensors) -> None:
    """Write tensors, each of which is computed when it is written."""
    if is_folder(out):
        with failing_as(lambda error: CheckpointError(f"{out} cannot be written: {reason(error)}")):
            (_write_adapter if plan.config.adapters else _write_folder)(plan, tensors)
    elif Path(out).suffix.lower() == SAFETENSORS:
        write_checkpoint(out, tensors)
    else:  # a torch file, which is whole in memory before, has tied tensors as one
        aliases = plan.units.aliases
        own = {name: tensors[name] for name in tensors if name not in aliases}
        write_checkpoint(out, {name: own[aliases.get(name, name)] for name in tensors})


def _checked(plan: MergePlan, merged: Tensors) -> LazyTensors:
    """Return the merged tensors, each checked to be finite when it is read.

    The error names the network that is not.
    """

    def check(name: str, block: torch.Tensor) -> torch.Tensor:
        try:
            check_finite("the merged network", name, block, plan.expected[name])
        except CheckpointError:
            for place, state in () if plan.config.slices else zip(plan.config.networks, plan.states, strict=True):
                check_finite(place, name, state[name], plan.expected[name])
            check_finite("the merged network", name, merged[name], plan.expected[name])
        return block

    return changed(merged, known_specs(merged), check)


def _write_folder(plan: MergePlan, tensors: LazyTensors) -> None:
    """Write a folder with what lies beside the tensors of the first network that is one, under its names."""
    first = Path(plan.config.folders[0])
    # Tied tensors have one name there, as transformers writes them.
    slices = plan.config.slices
    names = tensors if slices else open_checkpoint(first, opened=open_run)
    own = picked({name: (tensors, plan.names.get(name, name)) for name in names})
    config, folders = folder_config(first), plan.config.folders
    if slices:
        config = sliced_config(slices, config, {place: whole_config(Path(place)) for place in folders})
    for order in plan.orders:
        config |= order.options
    kinds = {spec.dtype for spec in own.specs if getattr(torch, spec.dtype).is_floating_point}
    if len(kinds) == 1:
        config = _of_dtype({DTYPE[0]: None, **config} if DTYPE[1] not in config else config, kinds.pop())
    with new_folder(check_folder(plan.config.out or "")) as new:
        tokens = next((order for order in plan.orders if order.beside), None)
        beside = tokens.beside if tokens and tokens.beside else first
        copy_beside(beside, new, without=[CONFIG])
        if tokens and tokens.tokenizer:
            for path in (path for path in files_beside(new) if TOKENIZER.fullmatch(path.name)):
                path.unlink()
            tokens.tokenizer.save_pretrained(new)
        write_json(new / CONFIG, config)
        write_shards(new, own)
        (new / CARD).write_text(_card(plan), encoding="utf-8")


def _write_adapter(plan: MergePlan, tensors: LazyTensors) -> None:
    """Write a folder of the adapters side by side, with what lies beside the first."""
    folders = [*map(Path, plan.config.adapters)]
    with new_folder(check_folder(plan.config.out or "")) as new:
        copy_beside(folders[0], new, without=[ADAPTER_CONFIG])
        write_json(new / ADAPTER_CONFIG, adapter_config(folders))
        write_checkpoint(new / ADAPTER[0], tensors)
        (new / CARD).write_text(_card(plan), encoding="utf-8")


def _of_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return a configuration, and those within it, with another type of tensors where one is named."""
    return {
        key: dtype if key in DTYPE else _of_dtype(value, dtype) if isinstance(value, dict) else value
        for key, value in config.items()
    }


def _card(plan: MergePlan) -> str:
    """Return what the folder is, in Markdown."""
    config = plan.config
    lines = [f"- {place}" for place in config.slices or config.networks]
    average, coefficients = config.average or "mean", config.coefficients or "equal"
    how = f"match {config.match}, average {average}, coefficients {coefficients}"
    how = "layers put together anew" if config.slices else how
    return "\n".join([MARK, "# A merged network", "", *lines, "", f"Merged by roundweave: {how}.", ""])
