"""From the configuration of a merge to networks that are read, checked, and whose units are known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flows.config import TrainConfig
from flows.merge_config import Architecture, MergeConfig
from flows.preparing import describe_objective, run_path
from flows.resolving import find_source, named_or_own, own_data
from flows.running import checked_trust
from storage.checkpoints import check_checkpoint, check_place, read_checkpoint
from storage.errors import CodeError, UsageError, one_line
from storage.run import open_run
from tasks.matching.check import check_function
from tasks.matching.units import UnitGroups, find_units
from tasks.merging import Gallery
from tasks.models import LOSSES, MODELS, ModelSpec, Objective
from tasks.partition import Partitions, Split
from tasks.user_code import Code, find_code, is_reference

BATCH = 100
"""Examples that go through the networks at once where activations are compared."""

OUTPUTS = 10
"""Outputs of a built-in model that is built without data."""


@dataclass(frozen=True)
class Subject:
    """A network to look into: how it is built, example inputs for it, and where there are data its examples."""

    objective: Objective
    inputs: tuple[torch.Tensor, ...]
    partitions: Partitions | None


def subject(config: Architecture, blocks: int = 1) -> Subject:
    """The network of a configuration; raises `UsageError` where it does not say enough."""
    if config.model is None:
        raise UsageError("which model? give --model FILE.py:function, or one of " + ", ".join(MODELS))
    model = named_or_own("model", config.model, MODELS)
    loss = named_or_own("loss", config.loss, LOSSES)
    assert model is not None
    if config.data is None:
        return _without_data(config, model, loss)
    data = own_data(config.data)
    same: dict[str, Any] = {field: getattr(config, field) for field in ("held_out", "dtype", "seed")}
    network: dict[str, Any] = {"model": model, "model_options": config.model_options or {}, "loss": loss}
    training = TrainConfig(**same, **network, data=data)
    split = Split(blocks, "iid", config.seed, None)
    partitions = Partitions(find_source(data), split, config.dtype, config.held_out)
    objective = describe_objective(training, partitions.describe(0))
    inputs = partitions.load(0, 0).train.inputs
    return Subject(objective, (inputs[: max(2, min(BATCH, len(inputs)))],), partitions)


def _without_data(config: Architecture, model: str | Code, loss: str | Code | None) -> Subject:
    if config.input is None:
        raise UsageError("give --data, or --input with the shape of example inputs, such as 2x3x32x32")
    inputs = example_inputs(config.input, config.dtype)
    options = json.dumps(config.model_options or {}, sort_keys=True)
    shape = tuple(inputs[0].shape[1:])
    built = ModelSpec(model, shape, OUTPUTS, config.dtype, config.seed, options)
    return Subject(Objective(built, loss or "cross_entropy"), inputs, None)


def example_inputs(given: str, dtype: str) -> tuple[torch.Tensor, ...]:
    """Inputs of a shape as ``2x3x32x32``, of integers 0 and 1 for ``int64:2x16``, or what a function returns."""
    if is_reference(given):
        return _own_inputs(find_code(given))
    kind, _, dimensions = given.rpartition(":")
    try:
        shape = [int(size) for size in dimensions.split("x")]
        if kind not in ("", "int64") or min(shape) < 1:
            raise ValueError
    except ValueError as error:
        raise UsageError(
            f"--input {given!r} is no shape such as 2x3x32x32 or int64:2x16, and no FILE.py:function"
        ) from error
    generator = torch.Generator().manual_seed(0)
    if kind:
        return (torch.randint(0, 2, shape, generator=generator),)
    return (torch.randn(shape, generator=generator, dtype=getattr(torch, dtype)),)


def _own_inputs(code: Code) -> tuple[torch.Tensor, ...]:
    try:
        value = code.load()()
    except Exception as error:
        raise CodeError(f"{code.reference} failed with {one_line(error)}") from error
    found = (value,) if isinstance(value, torch.Tensor) else value
    if not isinstance(found, tuple | list) or not found or not all(isinstance(t, torch.Tensor) for t in found):
        raise UsageError(f"{code.reference} must return a tuple of tensors, not {type(value).__name__}")
    return tuple(found)


@dataclass(frozen=True)
class MergePlan:
    """Networks that are checked and ready to be matched; `places` is where workers read them.

    `config` is complete: what was left open is taken from a stored run.
    """

    config: MergeConfig
    subject: Subject
    units: UnitGroups
    states: list[dict[str, torch.Tensor]]
    places: tuple[str, ...]
    root: Path

    @property
    def gallery(self) -> Gallery:
        """What the workers share; raises `UsageError` without data."""
        if self.subject.partitions is None:
            raise UsageError("activations and repair need examples; give --data")
        return Gallery(
            self.subject.objective, self.subject.partitions, self.units, self.config.examples, self.root
        )


def plan_merge(config: MergeConfig) -> MergePlan:
    """Read and check the networks, find their units, and check that permuting them is sound."""
    root = config.root.resolve()
    if config.name and run_path(root, config.name).exists():
        raise UsageError(f"{run_path(root, config.name)} exists already; give the merge another --name")
    if config.out:
        check_place(config.out)
    states = [read_checkpoint(place, root) for place in config.networks]
    known = _with_recorded(config)
    needs = "average = best" if known.average == "best" else "repair" if known.repair else f"match {known.match}"
    if known.data is None and (known.average == "best" or known.repair or known.match in ("activations", "mixed")):
        raise UsageError(f"{needs} needs examples; give --data")
    found = subject(known, min(config.blocks, max(1, config.examples // BATCH)))
    network = found.objective.model.build()
    for place, state in zip(config.networks, states, strict=True):
        check_checkpoint(place, state, network.state_dict())
    units = find_units(network, found.inputs)
    check_function(network, found.inputs, units)
    places = tuple(str(Path(place).resolve()) if Path(place).exists() else place for place in config.networks)
    return MergePlan(known, found, units, states, places, root)


def _with_recorded(config: MergeConfig) -> MergeConfig:
    """The configuration, what it leaves open taken from the run of the first stored round among its networks."""
    for place in config.networks:
        name, _, number = place.rpartition("@")
        if name and not Path(place).exists() and number.lstrip("-").isdigit():
            run = open_run(name, config.root)
            recorded = {field: value for field, value in run.config.items() if value is not None}
            checked_trust(run, config.root, config.trust)
            open_fields = set(Architecture.model_fields) - config.model_fields_set
            if "model" not in open_fields:
                open_fields -= {"model_options"}
            taken: dict[str, Any] = {field: recorded[field] for field in open_fields if field in recorded}
            return MergeConfig(**config.model_dump(exclude_unset=True) | taken)
    return config
