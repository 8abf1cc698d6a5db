"""What a merge needs of several networks, read and checked before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from roundweave.flows.config.merging.merge import MergeConfig
from roundweave.flows.merging.checks import (
    alike_in,
    check_adapters,
    check_means,
    check_places,
    check_rescaled,
    check_without_data,
)
from roundweave.flows.merging.recorded import (
    Origin,
    known_meaning,
    of_folder,
    of_type,
    orders_of_folders,
    orders_of_runs,
    own_data,
    own_models,
    recorded_in,
    with_recorded,
)
from roundweave.flows.merging.subjects import (
    analysed,
    check_same_models,
    checked_error,
    example_inputs,
    kept_code,
    own_samples,
    spec_of,
    subject,
)
from roundweave.flows.stored import open_run
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.opening import (
    check_checkpoint,
    fitted,
    lasting,
    open_checkpoint,
    outline,
    outline_of,
    tied_in,
    types_of,
)
from roundweave.storage.values.lazy import LazyTensors, picked
from roundweave.storage.values.tensors import let_go
from roundweave.tasks.data.meaning import NO_NAMES, Meaning
from roundweave.tasks.matching.groups import Tensors, UnitGroups
from roundweave.tasks.matching.solving.grams import Grams
from roundweave.tasks.matching.tapping import BATCH
from roundweave.tasks.matching.tracing.exporting import Inputs, first_names
from roundweave.tasks.merging.adapters import side_by_side
from roundweave.tasks.merging.averages.recipe import Recipe
from roundweave.tasks.merging.fisher import check_likelihood
from roundweave.tasks.merging.gallery import Gallery, Samples
from roundweave.tasks.merging.gram_files import network_digest, read_grams
from roundweave.tasks.merging.repair import has_batch_norm
from roundweave.tasks.merging.rows.orders import RowOrder
from roundweave.tasks.merging.slices import COUNTS, by_layer, stacked
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.networks.pretrained import (
    check_same_function,
    names_in_network,
    never_saved,
    renamed,
    whole_config,
)
from roundweave.tasks.numerics.unofficial import spectral_norms
from roundweave.tasks.own_code.code import short_name

SPECTRAL = re.compile(r"(^|\.)parametrizations\..*\._u$|_orig$")
"""Matches names of the tensors that torch's spectral norms have."""

STATISTICS = ("running_mean", "running_var")
"""The ends of names of BatchNorm's statistics."""

QUICK = 1e11
"""The most products of parameters, layers and examples for which layers are solved though nobody asks for it."""


@dataclass(frozen=True)
class MergePlan:
    """Networks that are checked and ready to be matched; `every_place` has the files that workers read them from.

    `config` is complete: missing fields were taken from a stored run or got their defaults. `gallery` is what
    workers need to build, read and observe the networks; None without data. `own` has for each network the
    examples that it was trained on; empty without data. `grams` are the networks' Gram matrices, if files of them
    are given, and `inputs` are example inputs. `spectral` and `normed` say whether the networks have spectral
    norms and BatchNorm. `expected` outlines their tensors, and `names` has the names that tensors of the first
    folder have in the network, if they are others; `orders` has those of rows, if tokenizers or labels differ.
    `model` is None if tensors are merged by their names alone. `recipe` says how each tensor is averaged, if it is
    not the plain mean. After the networks `every_state` and `every_place` have the base from which all were
    trained, if the recipe takes one. `meaning` is that of the merged network's inputs and outputs.
    """

    config: MergeConfig
    model: ModelSpec | None
    units: UnitGroups
    every_state: list[LazyTensors]
    expected: Tensors
    names: Mapping[str, str]
    every_place: tuple[str, ...]
    spectral: bool
    recipe: Recipe | None
    orders: tuple[RowOrder, ...]
    function_error: float = 0.0
    normed: bool = False
    inputs: Inputs = ()
    gallery: Gallery | None = None
    own: tuple[Samples, ...] = ()
    grams: tuple[Grams, ...] = ()
    meaning: Meaning = NO_NAMES

    @property
    def title(self) -> str:
        """A short name for people of what is merged."""
        return short_name(self.model.model) if self.model else "tensors"

    @property
    def architecture(self) -> ModelSpec:
        """How the networks are built, where more is done than averaging tensors by their names."""
        assert self.model is not None
        return self.model

    @property
    def count(self) -> int:
        """How many networks are merged, without their base."""
        return len(self.every_state) - bool(self.config.base)

    @property
    def states(self) -> list[LazyTensors]:
        """The networks without their base."""
        return self.every_state[: self.count]

    @property
    def places(self) -> tuple[str, ...]:
        """The files of the networks without their base."""
        return self.every_place[: self.count]

    def filled(self, states: list[LazyTensors]) -> list[LazyTensors]:
        """Networks of one order of units with rows for all tokens and labels: what one lacks is the others'."""
        # What a network lacks of its base's rows is the base's, which so has not changed.
        weights = (*[0.0] * self.count, 1.0) if self.config.base else self.config.shares(self.count)
        for order in self.orders:
            states = order.filled(states, weights)
        return states


@dataclass(frozen=True)
class Opened:
    """The networks of a merge and their base as they lie, and what their runs and folders say.

    `given` is the configuration as it was given; in `config` the runs have filled in what is missing. `types` has
    the type of each tensor by name, if none is given. `orders` and `names` are those of `MergePlan`. `every_run`
    has the runs of networks and base, None for files; it is empty if none is asked.
    """

    given: MergeConfig
    config: MergeConfig
    tensors: Sequence[Tensors]
    types: Mapping[str, torch.dtype] = field(default_factory=dict)
    orders: tuple[RowOrder, ...] = ()
    every_run: Sequence[Origin | None] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Sequence[Origin | None]:
        """The runs of the networks without their base."""
        return self.every_run[: len(self.given.networks)]

    def named_as_in(self, network: nn.Module) -> Opened:
        """Return the same with the network's names of tensors, and with rows in one order."""
        each = [names_in_network(network, tensors) for tensors in self.tensors]
        base = self.config.networks.index(self.config.folders[0]) if self.config.folders else 0
        alike = [renamed(tensors, names) for tensors, names in zip(self.tensors, each, strict=True)]
        orders = tuple(order.of(network) for order in self.orders)
        for order in orders:
            alike = [*order.ordered(alike)]
        return replace(self, orders=orders, names=each[base]).holding(alike)

    def holding(self, tensors: Sequence[Tensors]) -> Opened:
        """Return the same with other tensors, of types of their own."""
        return replace(self, tensors=tensors, types=self.types and types_of(tensors))


def plan_merge(config: MergeConfig) -> MergePlan:
    """Read and check the networks, find their units, and check that permuting them is sound.

    Raises `RoundweaveError` for anything that would make the merge fail later.
    """
    root = full_address(config.root)
    check_places(config, root)
    tensors = [open_checkpoint(place, root, open_run) for place in config.checkpoints]
    check_means(config.checkpoints, tensors)
    if config.adapters:
        check_adapters(config)
        alone = config.model_copy(update={"match": "none"})
        return _plan_by_name(Opened(config, alone, side_by_side(tensors)))
    if config.slices:
        return _plan_slices(config, dict(zip(config.networks, tensors, strict=True)))
    check_same_function([*map(Path, config.every_folder)])
    orders = orders_of_folders(config)
    opened = Opened(
        config, config, tensors, {}, orders, recorded_in(config.checkpoints, root, config.labels == "union")
    )
    known = with_recorded(config, opened.runs, root, config.trust)
    if not any(opened.runs) and config.folders and (orders or not config.by_name):
        options = {name: value for order in orders for name, value in order.options.items()}
        known = of_folder(known, config.folders[0], options)
    known, types = of_type(kept_code(known), tensors)
    if known.data is None:
        check_without_data(known)
    opened = replace(opened, config=known, types=types)
    return _plan_by_name(opened) if known.by_name else _plan_matched(opened)


def _plan_matched(opened: Opened) -> MergePlan:
    """Return the plan of a merge that knows how the networks compute."""
    config, known, runs, as_saved = opened.given, opened.config, opened.runs, opened.tensors
    found = subject(known, min(config.blocks, max(1, config.examples // BATCH)), as_saved[0])
    model = found.objective.model
    orders = opened.orders or orders_of_runs(config, runs, found.description, model)
    network = model.outlined()
    known = _decided(known, network)
    opened = replace(opened, config=known, orders=orders).named_as_in(network)
    units = analysed(found, network, partial(alike_in, opened.tensors, known))
    if lacking := [name for name in never_saved(network) if not any(name in each for each in opened.tensors)]:
        computed, units = model.build().state_dict(), units.without(lacking)
        whole = [{n: (each if n in each else computed, n) for n in (*each, *lacking)} for each in opened.tensors]
        opened = opened.holding([*map(picked, whole)])
    normed, expected = has_batch_norm(network), outline(network)
    if known.repair and not normed:
        check_rescaled(known)
    for parameter in network.parameters():  # frees memory, as the check draws parameters of its own
        let_go(parameter)
    plan = _fitted(opened, model, network, units, expected)
    check_same_models(model, found.few, own_models(config, opened.every_run))
    meaning = known_meaning(config, runs, found.description)
    error = checked_error(found, network, units)
    plan = replace(plan, function_error=error, normed=normed, inputs=found.inputs, meaning=meaning)
    if found.partitions is not None:
        gallery = Gallery(
            found.partitions, known.examples, found.objective, units, full_address(known.root), open_run
        )
        if known.average == "fisher":
            check_likelihood(gallery)
        each = zip(own_data(config, known, runs), runs, strict=True)
        plan = replace(plan, gallery=gallery, own=tuple(own_samples(known, *own, known.examples) for own in each))
    if known.grams:
        digests = [network_digest(tensors) for tensors in as_saved[: plan.count]]
        plan = replace(plan, grams=tuple(read_grams(known.grams, digests)))
    return plan


def _plan_slices(config: MergeConfig, tensors: Mapping[str, Tensors]) -> MergePlan:
    """Return the plan of a network whose layers are those of slices of others, in the first one's place."""
    folders = [*map(Path, config.every_folder)]
    listed = set.intersection(*(by_layer(whole_config(folder)) for folder in folders)) if folders else set()
    # Where the kind of each layer is listed, nothing else says which it is.
    check_same_function(folders, (*COUNTS, *listed, *["max_window_layers"] * ("layer_types" in listed)))
    orders_of_folders(config)  # refuses other tokens and labels
    alone = config.model_copy(update={"match": "none", "networks": (config.slices[0].network,)})
    stack = [stacked(config.slices, tensors)]
    plan = _plan_by_name(Opened(config, alone, stack, types_of(stack)))
    return replace(plan, config=plan.config.model_copy(update={"networks": config.networks}))


def _plan_by_name(opened: Opened) -> MergePlan:
    """The plan of a merge that matches nothing and keeps only a file: tensors are read when they are averaged.

    There is no work for a cluster, so none is started unless it is named.
    """
    config, model, network, aliases = opened.config, None, None, dict[str, str]()
    if config.model is not None:
        inputs = example_inputs(config.input, config.dtype) if config.input else ()
        model = spec_of(config, config.model, inputs, opened.tensors[0])
        check_same_models(model, inputs, own_models(opened.given, opened.every_run))
        network = model.outlined()
        opened, expected = opened.named_as_in(network), outline(network)
        aliases = {name: first for name, first in first_names(network).items() if name != first}
    else:
        expected = outline_of(opened.tensors[0])
        if "dtype" in config.model_fields_set:
            floats = {name for name, tensor in expected.items() if tensor.is_floating_point()}
            opened = replace(opened, types=dict.fromkeys(floats, getattr(torch, config.dtype)))
        if named := next((name for name in expected if SPECTRAL.search(name)), None):
            raise UsageError(f"{named} may be of a spectral norm, whose vectors have no mean; give --model")
        if config.wanted(len(config.networks), config.seed):  # which may part two tied names
            aliases = tied_in(opened.tensors)
    if not {"executor", "scheduler"} & config.model_fields_set:
        opened = replace(opened, config=config.model_copy(update={"executor": "inline"}))
    units = UnitGroups({}, (), {name: tuple(t.shape) for name, t in expected.items()}, aliases, {}, {})
    return _fitted(opened, model, network, units, expected, values=False)


def _fitted(
    opened: Opened,
    model: ModelSpec | None,
    network: nn.Module | None,
    units: UnitGroups,
    expected: Tensors,
    values: bool = True,
) -> MergePlan:
    """Return the plan of networks that have the `expected` tensors.

    Raises `CheckpointError` for one that has others.

    With `values` all tensors are read, to see that they are finite.
    """
    config, root = opened.config, full_address(opened.config.root)
    for place, tensors in zip(config.checkpoints, opened.tensors, strict=True):
        check_checkpoint(place, tensors, expected, values)
    return MergePlan(
        config,
        model,
        units,
        [fitted(tensors, expected, opened.types) for tensors in opened.tensors],
        expected,
        opened.names,
        tuple(lasting(place, root) for place in config.checkpoints),
        network is not None and any(True for _ in spectral_norms(network)),
        _recipe(config, network, units),
        opened.orders,
    )


def _recipe(config: MergeConfig, network: nn.Module | None, units: UnitGroups) -> Recipe | None:
    """Return the recipe of all tensors, of which those with an alias are named by the first.

    Raises `UsageError`.
    """
    wanted = config.wanted(len(config.networks), config.seed)
    names = [name for name in units.tensors if name not in units.aliases]
    if wanted is None:
        return None
    if network is None:  # nothing but their names tells which tensors are statistics
        return wanted.recipe(names, {name for name in names if name.endswith(STATISTICS)})
    return wanted.recipe(names, {name for name, _ in network.named_buffers()})


def _is_quick(config: MergeConfig, network: nn.Module) -> bool:
    """Tell whether solving the layers takes seconds or few minutes."""
    sizes = [parameter.numel() for parameter in network.parameters() if parameter.ndim > 1]
    return sum(sizes) * len(sizes) * config.examples * len(config.networks) <= QUICK


def _decided(config: MergeConfig, network: nn.Module) -> MergeConfig:
    """Return the configuration with defaults for `match`, `average` and `repair`."""
    data = config.data is not None
    one_to_one = config.soft is None and not config.within
    average = config.average or ("auto" if data and one_to_one and _is_quick(config, network) else "mean")
    by = "activations" if config.within else "mixed"
    match = config.match or (by if data and config.metric != "l2" else "weights")
    repair = data and has_batch_norm(network) if config.repair is None else config.repair
    return config.model_copy(update={"match": match, "average": average, "repair": repair})
