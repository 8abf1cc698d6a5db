"""Prepares a merge: reads and checks its networks, and finds their interchangeable units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import nn

from roundweave.flows.config.merge import Architecture, MergeConfig
from roundweave.flows.config.recorded import check_trust
from roundweave.flows.merging.subject import kept_code, subject
from roundweave.storage.checkpoints.opening import (
    check_checkpoint,
    fitted,
    lasting,
    open_checkpoint,
    outline,
    types_of,
)
from roundweave.storage.checkpoints.writing import check_place
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.figures import check_plot
from roundweave.storage.runs.names import is_run, run_address, stored_round
from roundweave.storage.runs.run import open_stored
from roundweave.storage.values.tensors import LazyTensors, dtype_name, let_go
from roundweave.tasks.matching.check import check_function
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.search.activations import BATCH
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.gallery import Gallery
from roundweave.tasks.merging.repair import has_batch_norm
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.numerics.unofficial import spectral_norms


@dataclass(frozen=True)
class MergePlan:
    """Networks that are checked and ready to be matched; `places` are the files that workers read them from.

    `config` is complete: missing fields were taken from a stored run or got their defaults. `gallery` is what
    workers need to build, read and observe the networks; None without data. `spectral` says
    whether the networks have spectral norms.
    """

    config: MergeConfig
    model: ModelSpec
    units: UnitGroups
    function_error: float
    states: list[LazyTensors]
    places: tuple[str, ...]
    spectral: bool
    gallery: Gallery | None


def plan_merge(config: MergeConfig) -> MergePlan:
    """Read and check the networks, find their units, and check that permuting them is sound.

    Raises `RoundweaveError` for anything that would make the merge fail later.
    """
    root = full_address(config.root)
    # Checked here, since otherwise the merge would fail only after all the work.
    if config.name and is_run(address := run_address(root, config.name)):
        raise UsageError(f"{address} exists already; give the merge another --name")
    if config.out:
        check_place(config.out, config.force)
    if config.plot:
        check_plot(config.plot)
    opened = [open_checkpoint(place, root) for place in config.networks]
    known = kept_code(_with_recorded(config))
    types = {} if "dtype" in known.model_fields_set else types_of(opened)
    if types:
        known = known.model_copy(update={"dtype": dtype_name(reduce(torch.promote_types, types.values()))})
    wishes = {"average = best": known.average == "best", "repair": bool(known.repair), "plot": bool(known.plot)}
    wishes |= {f"match {known.match}": known.match in ("activations", "mixed")}
    for wish in (wish for wish, wanted in wishes.items() if wanted and known.data is None):
        raise UsageError(f"{wish} needs examples; give --data")
    found = subject(known, min(config.blocks, max(1, config.examples // BATCH)))
    network = found.objective.model.build()
    expected = outline(network)
    known = _decided(known, network)
    units = find_units(network, found.inputs)
    spectral = any(True for _ in spectral_norms(network))
    for parameter in network.parameters():  # frees memory, as the check draws parameters of its own
        let_go(parameter)
    for place, state in zip(config.networks, opened, strict=True):
        check_checkpoint(place, state, expected)
    states = [fitted(state, expected, types) for state in opened]
    error = check_function(network, found.few, units)
    places = tuple(lasting(place, root) for place in config.networks)
    objective, partitions = found.objective, found.partitions
    gallery = None if partitions is None else Gallery(objective, partitions, units, known.examples, root)
    return MergePlan(known, objective.model, units, error, states, places, spectral, gallery)


def _decided(config: MergeConfig, network: nn.Module) -> MergeConfig:
    """The configuration with defaults for `match` and `repair`."""
    data = config.data is not None
    match = config.match or ("mixed" if data and config.metric != "l2" else "weights")
    repair = data and has_batch_norm(network) if config.repair is None else config.repair
    return config.model_copy(update={"match": match, "repair": repair})


def _with_recorded(config: MergeConfig) -> MergeConfig:
    """The configuration with missing fields taken from the run of the first stored round among its networks."""
    for place in config.networks:
        if stored := stored_round(place):
            run = open_stored(stored[0], config.root)
            recorded = {field: value for field, value in run.config.items() if value is not None}
            recorded["seed"] = recorded.get("split_seed", recorded["seed"])  # by which examples are held out
            open_fields = set(Architecture.model_fields) - config.model_fields_set
            if "input" not in open_fields:
                open_fields -= {"data"}
            if "model" not in open_fields:
                open_fields -= {"model_options"}
            taken: dict[str, Any] = {field: recorded[field] for field in open_fields if field in recorded}
            known = MergeConfig(**config.model_dump(exclude_unset=True) | taken)
            check_trust(run, config.root, config.trust, known, taken)
            return known
    return config
