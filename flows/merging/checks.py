"""What a merge refuses before its work, as it would fail later or mean something else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roundweave.flows.config.merging.merge import MergeConfig
from roundweave.storage.checkpoints.folders import CONFIG
from roundweave.storage.checkpoints.writing import check_folder, check_place, is_folder
from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.storage.runs.figures import check_plot
from roundweave.storage.runs.names import is_run, run_address
from roundweave.storage.values.lazy import known_specs
from roundweave.storage.values.tensors import same_bits
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.adapters import adapter_config


def check_places(config: MergeConfig, root: str) -> None:
    """Raise `UsageError` if something cannot be written, which would else be noticed after all the work."""
    if config.name and is_run(address := run_address(root, config.name)):
        raise UsageError(f"{address} exists already; give the merge another --name")
    if config.out:
        _check_out(config, config.out)
    if config.plot:
        check_plot(config.plot)


PACKED = ("int8", "uint8", "int16", "int32")
"""Whole numbers in which weights are packed; counters, as those of BatchNorm, are int64."""


def check_means(places: Sequence[str], opened: Sequence[Tensors]) -> None:
    """Raise `CheckpointError` for tensors of quantised weights, which have no mean where they differ."""
    for place, state in zip(places, opened, strict=True):
        for spec in known_specs(state):
            coded = spec.dtype.startswith("float8") or (spec.dtype in PACKED and spec.shape)
            first = opened[0].get(spec.name) if coded else None
            if first is not None and not same_bits(first, state[spec.name]):
                raise CheckpointError(
                    f"{place}: {spec.name} has {spec.dtype} of quantised weights, which have no mean; merge "
                    "networks before they are quantised"
                )


def alike_in(opened: Sequence[Tensors], config: MergeConfig, name: str) -> bool:
    """Tell whether a tensor that the example inputs do not reach fits any order of units, as all networks have it.

    Raises `UsageError` if it does not: units are to be matched that it may read, and nothing tells which.
    """
    values = [tensors[name] for tensors in opened if name in tensors]
    if config.match != "none" and not all(same_bits(values[0], each) for each in values):
        raise UsageError(
            f"{name} may read units that are matched, and the example inputs do not reach it; give --input "
            "FILE.py:function with inputs that do, or --match none"
        )
    return True


def check_without_data(config: MergeConfig) -> None:
    """Raise `UsageError` for what needs examples."""
    wishes = {f"average = {config.average}": config.average in ("auto", "best", "pleas", "fisher")}
    wishes |= {"average = regmean": config.average == "regmean" and not config.grams}
    wishes |= {"within": config.within, "repair": bool(config.repair), "plot": bool(config.plot)}
    wishes |= {f"match {config.match}": config.match in ("activations", "mixed")}
    wishes |= {"labels of runs": bool(config.labels) and config.folders != config.networks}
    if wish := next((wish for wish, wanted in wishes.items() if wanted), None):
        raise UsageError(f"{wish} needs examples; give --data")


def check_rescaled(config: MergeConfig) -> None:
    """Raise `UsageError` for a repair by scaling of averages whose units are not to have the mean spread."""
    by_layers = config.average == "mean" and config.wanted(len(config.networks), config.seed) is not None
    other = "" if config.average in ("auto", "best", "mean") else f"average {config.average}"
    if what := "within" if config.within else "weights by layers or below 0" if by_layers else other:
        raise UsageError(f"without BatchNorm, repair needs the plain mean, not {what}; leave repair out")


def _check_out(config: MergeConfig, out: str) -> None:
    """Raise `UsageError` if the merged network cannot be written there."""
    if not is_folder(out):
        check_place(out, config.force)
    elif not config.folders and not config.adapters:
        raise UsageError(f"no network has a {CONFIG} for the folder {out}; give --out FILE")
    else:
        check_folder(out, config.force)


def check_adapters(config: MergeConfig) -> None:
    """Raise `UsageError` or `CheckpointError` if adapters cannot be merged as asked."""
    full = [place for place in config.networks if place not in config.adapters]
    if full:
        raise UsageError(f"{full[0]} is no adapter, and {config.adapters[0]} is one; merge adapters with adapters")
    given = (config.model, config.data, config.name, config.vocabulary, config.labels, config.distil)
    plain = (config.average or "mean", config.match or "none") == ("mean", "none") and not any(given)
    plain = plain and config.wanted(len(config.networks), config.seed) is None
    if not plain or not (config.out and is_folder(config.out)):
        raise UsageError("adapters can only be averaged: give --out FOLDER and coefficients alone")
    adapter_config([*map(Path, config.adapters)])
