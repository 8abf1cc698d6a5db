"""What a merge takes from its networks' runs and files: architecture, own examples, order of labels and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, TypeVar

import torch

from roundweave.flows.config.experiment import PREPARED
from roundweave.flows.config.merging.merge import Architecture, MergeConfig
from roundweave.flows.config.recorded import check_trust
from roundweave.storage.checkpoints.folders import modules_beside
from roundweave.storage.checkpoints.writing import is_folder
from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.storage.places.base import Where
from roundweave.storage.runs.names import stored_round
from roundweave.storage.runs.opening import types_of
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.storage.values.tensors import dtype_name
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.meaning import Meaning, agreed_kind, agreed_names
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.rows.labels import NAMES, UNNAMED, find_labels, union_of_labels
from roundweave.tasks.merging.rows.orders import RowOrder
from roundweave.tasks.merging.rows.vocabulary import find_vocabulary
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.networks.pretrained import PREFIX as PRETRAINED
from roundweave.tasks.networks.pretrained import checked_config, whole_config
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.own_code.code import Code

AnyArchitecture = TypeVar("AnyArchitecture", bound=Architecture)


SHARED = {"data_options", *PREPARED}
"""The fields that decide which examples all networks are matched and scored by, and how these are prepared."""

OWN_DATA = ("data", "data_options", "seed")
"""The fields that say which examples a network was trained on."""

NO_TABLE = re.compile(r"(inputs|targets)( .*)?")
"""Matches the names of columns that are of no table."""


@dataclass(frozen=True)
class Origin:
    """The run of a stored round, and the fields of its configuration that have a value."""

    run: StoredRun
    fields: dict[str, Any]

    @classmethod
    def of(cls, run: StoredRun) -> Origin:
        """Return what is recorded in a run, read once."""
        fields = {field: value for field, value in run.config.items() if value is not None}
        fields["seed"] = fields.get("split_seed", fields["seed"])  # by which examples are held out
        return cls(run, fields)

    @property
    def meaning(self) -> Meaning:
        """What the numbers of its network's inputs and outputs mean."""
        return Meaning.recorded(self.run.attributes["data"])

    @cached_property
    def own(self) -> Architecture:
        """The run's own network and data, and how these are prepared."""
        names = {"data", "model", "model_options", *SHARED}
        return Architecture(**{name: value for name, value in self.fields.items() if name in names})

    def decisive(self, field: str) -> Any:
        """Return the value of a field; of the user's code what decides its behaviour, wherever it lies."""
        value = getattr(self.own, field)
        return value.digest if isinstance(value, Code) else value


def recorded_in(networks: Sequence[str], root: Where, union: bool = False) -> list[Origin | None]:
    """Return the runs of networks that are stored rounds; None for files.

    Raises `DataError` if what two networks know by one number has another name in their runs: it has no mean. In a
    `union` of labels these may differ.
    """
    stored = [stored_round(place) for place in networks]
    every = [Origin.of(open_stored(each[0], root)) if each else None for each in stored]
    check_data(networks, every, None, union)
    return every


def check_data(
    networks: Sequence[str], runs: Sequence[Origin | None], data: Description | None, union: bool = False
) -> None:
    """Raise `DataError` if what networks of runs know by one number has another name in another run, or the data.

    In a `union` of labels these may differ.
    """
    of_data = {"class": data.class_names, "column": _of_table(data.input_names)} if data else {}
    for what, named in names_of(networks, runs).items():
        if not (union and what == "class"):
            agreed_names({**named, "the data": of_data.get(what, ())}, what)
    kinds = {network: run.meaning.kind for network, run in zip(networks, runs, strict=True) if run}
    agreed_kind(kinds | ({"the data": data.kind} if data else {}))


def names_of(networks: Sequence[str], runs: Sequence[Origin | None]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The names of labels and of a table's columns in the networks' runs that have such names, by the network.

    Labels that are numbers are named by these where another run has names.
    """
    known = {network: each for network, each in zip(networks, runs, strict=True) if each}
    classes = {network: each.meaning.class_names for network, each in known.items()}
    if any(classes.values()):
        classes = {network: names or _numbers(known[network].run) for network, names in classes.items()}
    named = {
        "class": classes,
        "label": {network: _of_transformers(each.own) for network, each in known.items()},
        "column": {network: _of_table(each.meaning.input_names) for network, each in known.items()},
    }
    return {what: {place: each for place, each in names.items() if each} for what, names in named.items()}


def _numbers(run: StoredRun) -> tuple[str, ...]:
    """Return the numbers of labels without names, of which some may not occur; none if targets are no labels."""
    return tuple(map(str, range(run.attributes["data"].get("target_classes", 0))))


def _of_transformers(own: Architecture) -> tuple[str, ...]:
    """Return the names of labels in the configuration of a network of transformers; none if nobody named them."""
    labels = (own.model_options or {}).get(NAMES)
    numbered = sorted(labels.items(), key=lambda each: int(each[0])) if isinstance(labels, dict) else ()
    names = tuple(str(name) for _, name in numbered)
    return () if any(map(UNNAMED.fullmatch, names)) else names


def _of_table(columns: Iterable[Any]) -> tuple[str, ...]:
    """The names of a table's columns in order, but for those that inputs and targets have without a table."""
    return tuple(name for name in map(str, columns) if not NO_TABLE.fullmatch(name))


def with_recorded(
    config: AnyArchitecture, runs: Sequence[Origin | None], root: Where, trust: bool
) -> AnyArchitecture:
    """The configuration with missing fields from the first run, and the data of all if they have different ones.

    Raises `UsageError` if a run outside the root holds code, unless it is trusted.
    """
    known = [each for each in runs if each is not None]
    if not known:
        return config
    open_fields = set(Architecture.model_fields) - config.model_fields_set
    for given, with_it in (("input", "data"), ("data", "data_options"), ("model", "model_options")):
        if given not in open_fields:
            open_fields -= {with_it}
    _check_shared(known, open_fields & SHARED)
    taken = {field: known[0].fields[field] for field in open_fields if field in known[0].fields}
    each = [run.fields.get("data") for run in known]
    if "data" in taken and len(known) == len(runs) and all(each) and any(data != each[0] for data in each):
        every = [data for of_run in each for data in (of_run if isinstance(of_run, list) else [of_run])]
        taken["data"] = [data for number, data in enumerate(every) if data not in every[:number]]
    filled = type(config)(**config.model_dump(exclude_unset=True) | taken)
    for run in known:  # of the others each network's own data are used, and its model, to see that it is the same
        of_run = filled.model_copy(update={"data": run.own.data, "model": run.own.model})
        check_trust(run.run, root, trust, of_run, taken if run is known[0] else taken.keys() & {"data", "model"})
    return filled


def _check_shared(runs: Sequence[Origin], fields: Iterable[str]) -> None:
    """Raise `UsageError` for a field in which runs differ."""
    first = runs[0]
    for field in sorted(fields):
        if other := next((each for each in runs if each.decisive(field) != first.decisive(field)), None):
            raise UsageError(
                f"run {other.run.name} has another {field} than run {first.run.name}; give the one by which "
                f"all networks are to be matched and scored, by --{field.replace('_', '-')}"
            )


def of_folder(config: AnyArchitecture, folder: str, options: Mapping[str, Any]) -> AnyArchitecture:
    """The configuration with the network of a folder of transformers, if it has none, and more options of it."""
    model, given = config.model or f"{PRETRAINED}{folder}", config.model_options or {}
    return config.model_copy(update={"model": model, "model_options": {**given, **options}})


def of_type(config: AnyArchitecture, opened: Sequence[Tensors]) -> tuple[AnyArchitecture, dict[str, torch.dtype]]:
    """A type that holds all networks' floats in the configuration, and each tensor's by name, if none is given."""
    types = {} if "dtype" in config.model_fields_set else types_of(opened)
    if types:
        config = config.model_copy(update={"dtype": dtype_name(reduce(torch.promote_types, types.values()))})
    return config, types


def own_data(config: Architecture, known: Architecture, runs: Sequence[Origin | None]) -> list[dict[str, Any]]:
    """Return the fields that say which data each network was trained on, and the seed of what it held out.

    They are those that are given in `config`, for all or for each, else those of its run, else those of `known`.
    """
    common: dict[str, Any] = {name: getattr(known, name) for name in OWN_DATA}
    if config.data is not None:
        one_each = known.data if isinstance(known.data, tuple) and len(known.data) == len(runs) else None
        return [{**common, "data": data} for data in one_each or [known.data] * len(runs)]
    every = [run.fields if run else {} for run in runs]
    return [common | {name: fields[name] for name in OWN_DATA if name in fields} for fields in every]


def known_meaning(config: MergeConfig, runs: Sequence[Origin | None], data: Description | None) -> Meaning:
    """Return what the merged network's inputs and outputs mean, as the data or else the runs say."""
    named = names_of(config.networks, runs)
    classes, columns = (next(iter(named[what].values()), ()) for what in ("class", "column"))
    return data.meaning if data else Meaning(classes, columns, next((run.meaning.kind for run in runs if run), ""))


def own_models(config: Architecture, runs: Sequence[Origin | None]) -> list[Architecture]:
    """Return the models with which the networks' runs were trained; none if the user gives the model."""
    given = {"model", "model_options"} & config.model_fields_set
    return [] if given else [run.own for run in runs if run and run.own.model is not None]


def orders_of_folders(config: MergeConfig) -> tuple[RowOrder, ...]:
    """Return how rows of tokens and labels are put in order.

    Empty if all have the same, or files do not say which.
    """
    if config.folders != config.networks:
        if config.vocabulary:
            raise UsageError("vocabulary needs folders, which list their tokens; leave it out")
        if config.labels and (config.labels == "first" or not all(map(stored_round, config.networks))):
            raise UsageError(
                "labels is for folders, which say what their labels are, and labels = union for runs; leave it out"
            )
        return ()
    if config.vocabulary == "base" and len(config.every_folder) == len(config.folders):
        raise UsageError("vocabulary = base needs a base network in a folder; give --base FOLDER")
    folders = [*map(Path, config.every_folder)]
    modules = [modules_beside(folder) for folder in folders]
    if other := next((folder for folder, each in zip(folders, modules, strict=True) if each != modules[0]), None):
        raise CheckpointError(f"{other} and {folders[0]} differ in modules.json; give both the same modules")
    tokens = find_vocabulary(folders, [whole_config(folder) for folder in folders], config.vocabulary)
    labels = find_labels(folders, [checked_config(folder) for folder in folders], config.labels)
    if labels or (tokens and config.vocabulary != "base"):
        _check_mean(config)
    if (tokens or labels) and config.data is not None:
        raise UsageError("networks of other tokens or labels have no examples in common; leave data out")
    more = "union" in (tokens and config.vocabulary, labels and config.labels)
    if more and not (config.out and is_folder(config.out)):
        raise UsageError("a union needs files that name all tokens and labels; give --out FOLDER")
    return tuple(order for order in (tokens, labels) if order)


def orders_of_runs(
    config: MergeConfig, runs: Sequence[Origin | None], data: Description | None, model: ModelSpec
) -> tuple[RowOrder, ...]:
    """Return how rows of labels of runs are put in the order of all their data; empty if it is that of each.

    Raises `DataError` and `UsageError` if the labels, or columns, of the data and the runs do not go together.
    """
    check_data(config.networks, runs, data, config.labels == "union")
    named = names_of(config.networks, runs)["class"]
    merged = data.class_names if data else ()
    few = [network for network, names in named.items() if data and len(names) < len(merged)]
    if few and config.labels is None and model.model in MODELS:  # which have an output for each label
        raise UsageError(f"{few[0]} knows {len(named[few[0]])} labels of {len(merged)}; give --labels union")
    if config.labels is None or all(named.get(network) == merged for network in config.networks):
        return ()
    for network in config.networks:
        if network not in named:
            raise UsageError(f"{network} has no names of its labels; leave labels out")
        if unknown := [name for name in named[network] if name not in merged]:
            raise UsageError(f"{network} has label {unknown[0]!r}, which no data set names; give all by --data")
    if unknown := [name for name in merged if not any(name in labels for labels in named.values())]:
        raise UsageError(f"the data has label {unknown[0]!r}, which none of the networks knows")
    _check_mean(config)
    return (union_of_labels([named[network] for network in config.networks], merged, model),)


def _check_mean(config: MergeConfig) -> None:
    """Raise `UsageError` for what networks of other rows cannot do."""
    other = config.wanted(len(config.networks), config.seed) is not None or config.average == "fisher"
    average = f"average = {config.average}" if config.average not in (None, "mean") else "layers and coefficients"
    wishes = {"base": config.base, "distil": config.distil, average: other}
    if wish := next((wish for wish, wanted in wishes.items() if wanted), None):
        raise UsageError(f"networks of other tokens or labels are merged by their mean; leave {wish} out")
