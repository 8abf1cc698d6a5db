"""From the configuration of a merge to networks that are read, checked, and whose units are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flows.config.merge import Architecture, MergeConfig
from flows.config.recorded import check_trust
from flows.merging.subject import Subject, kept_code, subject
from flows.reporting.plots import check_plot
from storage.errors import UsageError
from storage.runs.checkpoints import check_checkpoint, check_place, read_checkpoint
from storage.runs.names import run_path, stored_round
from storage.runs.run import open_run
from tasks.matching.averaging import check_layer
from tasks.matching.check import check_function
from tasks.matching.groups import UnitGroups
from tasks.matching.search.activations import BATCH
from tasks.matching.units import find_units
from tasks.merging.gallery import Gallery, fitted


@dataclass(frozen=True)
class MergePlan:
    """Networks that are checked and ready to be matched; `places` is where workers read them.

    `config` is complete: what was left open is taken from a stored run.
    """

    config: MergeConfig
    subject: Subject
    units: UnitGroups
    function_error: float
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
    _check_places(config, root)
    read = [read_checkpoint(place, root) for place in config.networks]
    known = kept_code(_with_recorded(config))
    if known.data is None:
        _check_without_data(known)
    found = subject(known, min(config.blocks, max(1, config.examples // BATCH)))
    network = found.objective.model.build()
    expected = network.state_dict()
    for place, state in zip(config.networks, read, strict=True):
        check_checkpoint(place, state, expected)
    states = [fitted(state, expected) for state in read]
    for layer in known.layers:
        check_layer(layer, expected)
    units = find_units(network, found.inputs)
    error = check_function(network, found.inputs, units)
    return MergePlan(
        known, found, units, error, states, tuple(_seen_by_workers(place) for place in config.networks), root
    )


def _check_places(config: MergeConfig, root: Path) -> None:
    """Refuse what would fail only after all the work."""
    if config.name and run_path(root, config.name).exists():
        raise UsageError(f"{run_path(root, config.name)} exists already; give the merge another --name")
    if config.out:
        check_place(config.out)
    if config.plot:
        check_plot(Path(config.plot))


def _check_without_data(config: MergeConfig) -> None:
    wishes = {"average = best": config.average == "best", "repair": config.repair}
    wishes |= {f"match {config.match}": config.match in ("activations", "mixed")}
    for wish, wanted in wishes.items():
        if wanted:
            raise UsageError(f"{wish} needs examples; give --data")


def _seen_by_workers(place: str) -> str:
    """A place that does not depend on the working directory."""
    run, number = stored_round(place) or (place, None)
    if not Path(run).exists():
        return place
    return str(Path(run).resolve()) + ("" if number is None else f"@{number}")


def _with_recorded(config: MergeConfig) -> MergeConfig:
    """The configuration, what it leaves open taken from the run of the first stored round among its networks."""
    for place in config.networks:
        if stored := stored_round(place):
            run = open_run(stored[0], config.root)
            recorded = {field: value for field, value in run.config.items() if value is not None}
            open_fields = set(Architecture.model_fields) - config.model_fields_set
            if "model" not in open_fields:
                open_fields -= {"model_options"}
            taken: dict[str, Any] = {field: recorded[field] for field in open_fields if field in recorded}
            known = MergeConfig(**config.model_dump(exclude_unset=True) | taken)
            check_trust(run, config.root, config.trust, known, taken)
            return known
    return config
