"""What a merge needs of several networks, read and checked before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from roundweave.flows.config.merging.merge import Architecture, MergeConfig
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
    norms and BatchNorm.
    `expected` outlines their tensors, and `names` has the names that tensors of the first folder have in the
    network, where they are others; `orders` has those of rows, if tokenizers or labels differ. `model` is None
    where tensors are merged by their names alone. `recipe` says how each tensor is averaged, if it is not the
    plain mean. After the networks `every_state` and `every_place` have the base from which all were trained, if
    the recipe takes one. `meaning` is that of the merged network's inputs and outputs.
    """

    config: MergeConfig
    model: ModelSpec | None
    units: UnitGroups
    function_error: float
    every_state: list[LazyTensors]
    expected: Tensors
    names: Mapping[str, str]
    every_place: tuple[str, ...]
    spectral: bool
    normed: bool = False
    inputs: Inputs = ()
    gallery: Gallery | None = None
    own: tuple[Samples, ...] = ()
    grams: tuple[Grams, ...] = ()
    orders: tuple[RowOrder, ...] = ()
    recipe: Recipe | None = None
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


def plan_merge(config: MergeConfig) -> MergePlan:
    """Read and check the networks, find their units, and check that permuting them is sound.

    Raises `RoundweaveError` for anything that would make the merge fail later.
    """
    root = full_address(config.root)
    check_places(config, root)
    opened = [open_checkpoint(place, root, open_run) for place in config.checkpoints]
    check_means(config.checkpoints, opened)
    if config.adapters:
        check_adapters(config)
        alone = config.model_copy(update={"match": "none"})
        return _plan_by_name(alone, side_by_side(opened), {}, root, ())
    if config.slices:
        return _plan_slices(config, dict(zip(config.networks, opened, strict=True)), root)
    check_same_function([*map(Path, config.every_folder)])
    orders = orders_of_folders(config)
    every = recorded_in(config.checkpoints, root, config.labels == "union")
    known, types = _completed(config, every[: len(config.networks)], opened, root, orders)
    if known.by_name:
        return _plan_by_name(known, opened, types, root, orders, own_models(config, every))
    return _plan_matched(config, known, opened, types, root, orders, every)


def _completed(
    config: MergeConfig,
    runs: Sequence[Origin | None],
    opened: Sequence[Tensors],
    root: str,
    orders: Sequence[RowOrder],
) -> tuple[MergeConfig, dict[str, torch.dtype]]:
    """The configuration with missing fields from the runs, folders and types; each tensor's type by name.

    Raises `UsageError` for what needs examples if there are none.
    """
    known = with_recorded(config, runs, root, config.trust)
    if not any(runs) and config.folders and (orders or not config.by_name):
        options = {name: value for order in orders for name, value in order.options.items()}
        known = of_folder(known, config.folders[0], options)
    known, types = of_type(kept_code(known), opened)
    if known.data is None:
        check_without_data(known)
    return known, types


def _plan_matched(
    config: MergeConfig,
    known: MergeConfig,
    opened: Sequence[Tensors],
    types: Mapping[str, torch.dtype],
    root: str,
    orders: tuple[RowOrder, ...],
    every: Sequence[Origin | None],
) -> MergePlan:
    """The plan of a merge that knows how the networks compute; `config` is as it was given, `known` is complete.

    `every` has the runs of all networks, and of their base.
    """
    runs = every[: len(config.networks)]
    found = subject(known, min(config.blocks, max(1, config.examples // BATCH)), opened[0])
    orders = orders or orders_of_runs(config, runs, found.description, found.objective.model)
    network = found.objective.model.outlined()
    as_saved = opened[: len(config.networks)]
    opened, names, orders = _named_alike(config, network, opened, orders)
    known = _decided(known, network)
    units = analysed(found, network, partial(alike_in, opened, known))
    if lacking := [name for name in never_saved(network) if all(name not in tensors for tensors in opened)]:
        computed, units = found.objective.model.build().state_dict(), units.without(lacking)
        opened = [picked({n: (each if n in each else computed, n) for n in (*each, *lacking)}) for each in opened]
    expected = outline(network)
    if known.repair and not has_batch_norm(network):
        check_rescaled(known)
    spectral = any(True for _ in spectral_norms(network))
    for parameter in network.parameters():  # frees memory, as the check draws parameters of its own
        let_go(parameter)
    types = types and types_of(opened)
    for place, state in zip(config.checkpoints, opened, strict=True):
        check_checkpoint(place, state, expected)
    check_same_models(found.objective.model, found.few, own_models(config, every))
    recipe = _recipe(known, network, units)
    states = [fitted(state, expected, types) for state in opened]
    error = checked_error(found, network, units)
    places = tuple(lasting(place, root) for place in config.checkpoints)
    objective, partitions = found.objective, found.partitions
    gallery = None if partitions is None else Gallery(partitions, known.examples, objective, units, root, open_run)
    if gallery and known.average == "fisher":
        check_likelihood(gallery)
    each = own_data(config, known, runs) if gallery else ()
    own = tuple(own_samples(known, own, run, known.examples) for own, run in zip(each, runs, strict=False))
    grams = tuple(read_grams(known.grams, [network_digest(state) for state in as_saved])) if known.grams else ()
    return MergePlan(
        known,
        objective.model,
        units,
        error,
        states,
        expected,
        names,
        places,
        spectral,
        has_batch_norm(network),
        found.inputs,
        gallery,
        own,
        grams,
        orders,
        recipe,
        known_meaning(config, runs, found.description),
    )


def _plan_slices(config: MergeConfig, opened: Mapping[str, Tensors], root: str) -> MergePlan:
    """The plan of a network whose layers are those of slices of others, in the first one's place."""
    folders = [*map(Path, config.every_folder)]
    listed = set.intersection(*(by_layer(whole_config(folder)) for folder in folders)) if folders else set()
    # Where the kind of each layer is listed, nothing else says which it is.
    check_same_function(folders, (*COUNTS, *listed, *["max_window_layers"] * ("layer_types" in listed)))
    orders_of_folders(config)  # refuses other tokens and labels
    alone = config.model_copy(update={"match": "none", "networks": (config.slices[0].network,)})
    stack = stacked(config.slices, opened)
    plan = _plan_by_name(alone, [stack], types_of([stack]), root, ())
    return replace(plan, config=plan.config.model_copy(update={"networks": config.networks}))


def _plan_by_name(
    config: MergeConfig,
    opened: Sequence[Tensors],
    types: Mapping[str, torch.dtype],
    root: str,
    orders: tuple[RowOrder, ...],
    models: Sequence[Architecture] = (),
) -> MergePlan:
    """The plan of a merge that matches nothing and keeps only a file: tensors are read when they are averaged.

    There is no work for a cluster, so none is started unless it is named.
    """
    if not {"executor", "scheduler"} & config.model_fields_set:
        config = config.model_copy(update={"executor": "inline"})
    model, network, expected = None, None, outline_of(opened[0])
    if config.model is not None:
        inputs = example_inputs(config.input, config.dtype) if config.input else ()
        model = spec_of(config, config.model, inputs, opened[0])
        check_same_models(model, inputs, models)
        network = model.outlined()
        expected = outline(network)
    elif "dtype" in config.model_fields_set:
        types = {n: getattr(torch, config.dtype) for n, t in expected.items() if t.is_floating_point()}
    spectral = network is not None and any(True for _ in spectral_norms(network))
    if network is None and (named := next((name for name in expected if SPECTRAL.search(name)), None)):
        raise UsageError(f"{named} may be of a spectral norm, whose vectors have no mean; give --model")
    opened, names, orders = _named_alike(config, network, opened, orders) if network else (opened, {}, ())
    types = types_of(opened) if types and network else types
    for place, state in zip(config.checkpoints, opened, strict=True):
        check_checkpoint(place, state, expected, values=False)
    states = [fitted(state, expected, types) for state in opened]
    aliases = {name: first for name, first in first_names(network).items() if name != first} if network else {}
    if network is None and config.wanted(len(config.networks), config.seed):  # which may part two tied names
        aliases = tied_in(opened)
    units = UnitGroups({}, (), {name: tuple(t.shape) for name, t in expected.items()}, aliases, {}, {})
    places = tuple(lasting(place, root) for place in config.checkpoints)
    return MergePlan(
        config,
        model,
        units,
        0.0,
        states,
        expected,
        names,
        places,
        spectral,
        orders=orders,
        recipe=_recipe(config, network, units),
    )


def _recipe(config: MergeConfig, network: nn.Module | None, units: UnitGroups) -> Recipe | None:
    """The recipe of all tensors, of which those with an alias are named by the first; raises `UsageError`."""
    wanted = config.wanted(len(config.networks), config.seed)
    names = [name for name in units.tensors if name not in units.aliases]
    if wanted is None:
        return None
    if network is None:  # nothing but their names tells which tensors are statistics
        return wanted.recipe(names, {name for name in names if name.endswith(STATISTICS)})
    return wanted.recipe(names, {name for name, _ in network.named_buffers()})


def _named_alike(
    config: MergeConfig, network: nn.Module, opened: Sequence[Tensors], orders: Sequence[RowOrder]
) -> tuple[list[Tensors], dict[str, str], tuple[RowOrder, ...]]:
    """The tensors under the network's names with rows in one order, the names by the folder's, and its orders."""
    each = [names_in_network(network, tensors) for tensors in opened]
    base = config.networks.index(config.folders[0]) if config.folders else 0
    alike = [renamed(tensors, names) for tensors, names in zip(opened, each, strict=True)]
    known = tuple(order.of(network) for order in orders)
    for order in known:
        alike = [*order.ordered(alike)]
    return alike, each[base], known


def _is_quick(config: MergeConfig, network: nn.Module) -> bool:
    """Whether solving the layers takes seconds or few minutes."""
    sizes = [parameter.numel() for parameter in network.parameters() if parameter.ndim > 1]
    return sum(sizes) * len(sizes) * config.examples * len(config.networks) <= QUICK


def _decided(config: MergeConfig, network: nn.Module) -> MergeConfig:
    """The configuration with defaults for `match`, `average` and `repair`."""
    data = config.data is not None
    one_to_one = config.soft is None and not config.within
    average = config.average or ("auto" if data and one_to_one and _is_quick(config, network) else "mean")
    by = "activations" if config.within else "mixed"
    match = config.match or (by if data and config.metric != "l2" else "weights")
    repair = data and has_batch_norm(network) if config.repair is None else config.repair
    return config.model_copy(update={"match": match, "average": average, "repair": repair})
