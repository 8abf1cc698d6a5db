"""What a merge needs of several networks, read and checked before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
from torch import nn

from roundweave.flows.config.exports import check_folder, is_folder
from roundweave.flows.config.merge import MergeConfig
from roundweave.flows.merging.recorded import own_data, recorded_in, with_recorded
from roundweave.flows.merging.subjects import (
    analysed,
    checked_error,
    example_inputs,
    kept_code,
    own_samples,
    spec_of,
    subject,
)
from roundweave.storage.checkpoints.folders import CONFIG
from roundweave.storage.checkpoints.opening import (
    check_checkpoint,
    fitted,
    lasting,
    open_checkpoint,
    outline,
    outline_of,
    types_of,
)
from roundweave.storage.checkpoints.writing import check_place
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.figures import check_plot
from roundweave.storage.runs.names import is_run, run_address
from roundweave.storage.values.tensors import LazyTensors, dtype_name, let_go
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.solving.grams import Grams
from roundweave.tasks.matching.tapping import BATCH
from roundweave.tasks.matching.tracing.trace import Inputs, first_names
from roundweave.tasks.merging.adapters import adapter_config, side_by_side
from roundweave.tasks.merging.averages.recipe import Recipe
from roundweave.tasks.merging.gallery import Gallery, Samples
from roundweave.tasks.merging.gram_files import network_digest, read_grams
from roundweave.tasks.merging.repair import has_batch_norm
from roundweave.tasks.merging.vocabulary import Vocabulary, find_vocabulary
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.networks.pretrained import PREFIX as PRETRAINED
from roundweave.tasks.networks.pretrained import (
    check_same_function,
    checked_config,
    names_in_network,
    renamed,
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
    """Networks that are checked and ready to be matched; `places` are the files that workers read them from.

    `config` is complete: missing fields were taken from a stored run or got their defaults. `gallery` is what
    workers need to build, read and observe the networks; None without data. `own` has for each network the
    examples that it was trained on; empty without data. `grams` are the networks' Gram matrices, if files of them
    are given, and `inputs` are example inputs. `spectral` and `normed` say whether the networks have spectral
    norms and BatchNorm.
    `expected` outlines their tensors, and `names` has the names that tensors of the first folder have in the
    network, where they are others; `vocabulary` is there if tokenizers differ. `model` is None where tensors are
    merged by their names alone. `recipe` says how each tensor is averaged, if it is not the plain mean, and `base`
    is the network from which all were trained, if the recipe takes one.
    """

    config: MergeConfig
    model: ModelSpec | None
    units: UnitGroups
    function_error: float
    states: list[LazyTensors]
    expected: Mapping[str, torch.Tensor]
    names: Mapping[str, str]
    places: tuple[str, ...]
    spectral: bool
    normed: bool = False
    inputs: Inputs = ()
    gallery: Gallery | None = None
    own: tuple[Samples, ...] = ()
    grams: tuple[Grams, ...] = ()
    vocabulary: Vocabulary | None = None
    base: LazyTensors | None = None
    base_place: str | None = None
    recipe: Recipe | None = None

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
    def matched_states(self) -> list[LazyTensors]:
        """The networks, and after them their base, whose units are in an order of its own, too."""
        return [*self.states, *([self.base] if self.base is not None else [])]

    @property
    def matched_places(self) -> tuple[str, ...]:
        """The files of `matched_states`."""
        return (*self.places, *([self.base_place] if self.base_place is not None else []))


def plan_merge(config: MergeConfig) -> MergePlan:
    """Read and check the networks, find their units, and check that permuting them is sound.

    Raises `RoundweaveError` for anything that would make the merge fail later.
    """
    root = full_address(config.root)
    # Checked here, since otherwise the merge would fail only after all the work.
    if config.name and is_run(address := run_address(root, config.name)):
        raise UsageError(f"{address} exists already; give the merge another --name")
    if config.out:
        _check_out(config, config.out)
    if config.plot:
        check_plot(config.plot)
    opened = [open_checkpoint(place, root) for place in config.checkpoints]
    if config.adapters:
        _check_adapters(config)
        alone = config.model_copy(update={"match": "none"})
        return _plan_by_name(alone, side_by_side(opened), {}, root, None)
    check_same_function([*map(Path, config.every_folder)])
    vocabulary = _vocabulary(config)
    runs = recorded_in(config.networks, root)
    known = with_recorded(config, runs, root, config.trust)
    known = kept_code(known if any(runs) else _with_folder(known, vocabulary))
    types = {} if "dtype" in known.model_fields_set else types_of(opened)
    if types:
        known = known.model_copy(update={"dtype": dtype_name(reduce(torch.promote_types, types.values()))})
    wishes = {f"average = {known.average}": known.average in ("auto", "best", "pleas")}
    wishes |= {"average = regmean": known.average == "regmean" and not known.grams}
    wishes |= {"within": known.within, "repair": bool(known.repair), "plot": bool(known.plot)}
    wishes |= {f"match {known.match}": known.match in ("activations", "mixed")}
    for wish in (wish for wish, wanted in wishes.items() if wanted and known.data is None):
        raise UsageError(f"{wish} needs examples; give --data")
    if known.by_name:
        return _plan_by_name(known, opened, types, root, vocabulary)
    found = subject(known, min(config.blocks, max(1, config.examples // BATCH)))
    network, units = analysed(found)
    expected = outline(network)
    known = _decided(known, network)
    spectral = any(True for _ in spectral_norms(network))
    for parameter in network.parameters():  # frees memory, as the check draws parameters of its own
        let_go(parameter)
    opened, names = _named_alike(config, network, opened, vocabulary)
    types = types and types_of(opened)
    for place, state in zip(config.checkpoints, opened, strict=True):
        check_checkpoint(place, state, expected)
    count = len(config.networks)
    recipe = _recipe(known, network, units)
    fits = [fitted(state, expected, types) for state in opened]
    states, base = fits[:count], next(iter(fits[count:]), None)
    error = checked_error(found, network, units)
    places = tuple(lasting(place, root) for place in config.checkpoints)
    objective, partitions = found.objective, found.partitions
    gallery = None if partitions is None else Gallery(partitions, known.examples, objective, units, root)
    each = own_data(config, known, runs) if gallery else ()
    own = tuple(own_samples(known, *own, known.examples) for own in each)
    grams = tuple(read_grams(known.grams, [network_digest(state) for state in states])) if known.grams else ()
    return MergePlan(
        known,
        objective.model,
        units,
        error,
        states,
        expected,
        names,
        places[:count],
        spectral,
        has_batch_norm(network),
        found.inputs,
        gallery,
        own,
        grams,
        vocabulary,
        base,
        next(iter(places[count:]), None),
        recipe,
    )


def _check_out(config: MergeConfig, out: str) -> None:
    """Raise `UsageError` if the merged network cannot be written there."""
    if not is_folder(out):
        check_place(out, config.force)
    elif not config.folders and not config.adapters:
        raise UsageError(f"{out} is to be a folder, whose {CONFIG} none of the networks has; give --out FILE")
    else:
        check_folder(out, config.force)


def _check_adapters(config: MergeConfig) -> None:
    """Raise `UsageError` or `CheckpointError` if adapters cannot be merged as asked."""
    full = [place for place in config.networks if place not in config.adapters]
    if full:
        raise UsageError(f"{full[0]} is no adapter, and {config.adapters[0]} is one; merge adapters with adapters")
    given = (config.model, config.data, config.name, config.vocabulary, config.distil)
    plain = (config.average or "mean", config.match or "none") == ("mean", "none") and not any(given)
    if not plain or not (config.out and is_folder(config.out)):
        raise UsageError("adapters have a mean, and nothing else: give --out FOLDER and coefficients alone")
    adapter_config([*map(Path, config.adapters)])


def _plan_by_name(
    config: MergeConfig,
    opened: Sequence[Mapping[str, torch.Tensor]],
    types: Mapping[str, torch.dtype],
    root: str,
    vocabulary: Vocabulary | None,
) -> MergePlan:
    """The plan of a merge that matches nothing and keeps only a file: tensors are read when they are averaged."""
    model, network, expected = None, None, outline_of(opened[0])
    if config.model is not None:
        model = spec_of(config, config.model, example_inputs(config.input, config.dtype) if config.input else ())
        network = model.outlined()
        expected = outline(network)
    elif "dtype" in config.model_fields_set:
        types = {n: getattr(torch, config.dtype) for n, t in expected.items() if t.is_floating_point()}
    spectral = network is not None and any(True for _ in spectral_norms(network))
    if network is None and (named := next((name for name in expected if SPECTRAL.search(name)), None)):
        raise UsageError(f"{named} may be of a spectral norm, whose vectors have no mean; give --model")
    opened, names = _named_alike(config, network, opened, vocabulary) if network else (opened, {})
    types = types_of(opened) if types and network else types
    for place, state in zip(config.checkpoints, opened, strict=True):
        check_checkpoint(place, state, expected, values=False)
    states, count = [fitted(state, expected, types) for state in opened], len(config.networks)
    aliases = {name: first for name, first in first_names(network).items() if name != first} if network else {}
    units = UnitGroups({}, (), {name: tuple(t.shape) for name, t in expected.items()}, aliases, {}, {})
    places = tuple(lasting(place, root) for place in config.checkpoints)
    return MergePlan(
        config,
        model,
        units,
        0.0,
        states[:count],
        expected,
        names,
        places[:count],
        spectral,
        vocabulary=vocabulary,
        base=next(iter(states[count:]), None),
        base_place=next(iter(places[count:]), None),
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
    config: MergeConfig,
    network: nn.Module,
    opened: Sequence[Mapping[str, torch.Tensor]],
    vocabulary: Vocabulary | None,
) -> tuple[list[Mapping[str, torch.Tensor]], dict[str, str]]:
    """The tensors under the network's names and with rows of the same tokens; the names by those in the folder."""
    each = [names_in_network(network, tensors) for tensors in opened]
    base = config.networks.index(config.folders[0]) if config.folders else 0
    alike = [renamed(tensors, names) for tensors, names in zip(opened, each, strict=True)]
    if vocabulary:
        alike = [*vocabulary.ordered(network, alike, config.shares(len(alike)))]
    return alike, each[base]


def _vocabulary(config: MergeConfig) -> Vocabulary | None:
    """How rows of tokens are put in one order; None if all networks have the same, or files do not say which."""
    if config.folders != config.networks:
        if config.vocabulary:
            raise UsageError("vocabulary is for folders that have their tokenizers beside them; leave it out")
        return None
    folders = [*map(Path, config.every_folder)]
    sizes = [int(checked_config(folder).get("vocab_size") or 0) for folder in folders]
    found = find_vocabulary(folders, sizes, config.vocabulary)
    if found and (config.base or config.wanted(len(config.networks), config.seed)):
        raise UsageError("networks that number other tokens are merged by their mean; leave average and base out")
    if found and config.data is not None:
        raise UsageError("networks that number other tokens have no examples in common; leave data out")
    if found and found.tokenizer and not (config.out and is_folder(config.out)):
        raise UsageError("a vocabulary of all tokens needs a tokenizer that has them; give --out FOLDER")
    return found


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


def _with_folder(config: MergeConfig, vocabulary: Vocabulary | None) -> MergeConfig:
    """The configuration with the network of the first folder, where none is given."""
    options = dict(config.model_options or {}) | ({"vocab_size": vocabulary.size} if vocabulary else {})
    if config.model is None and config.folders and not (config.by_name and vocabulary is None):
        config = config.model_copy(update={"model": f"{PRETRAINED}{config.folders[0]}"})
    return config.model_copy(update={"model_options": options}) if options else config
