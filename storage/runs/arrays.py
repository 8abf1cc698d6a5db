"""Stored tensors and numbers as xarray arrays, which are read and verified when their values are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from xarray.backends import BackendArray

# This module is not public, but xarray's own guide to backends imports it. Checked with xarray 2025.9 to 2026.9.0.
from xarray.core import indexing

from roundweave.storage.errors import TensorMissing, nearest
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import Commit, UpdateRecord
from roundweave.storage.rounds.numbers import Numbers
from roundweave.storage.rounds.pruned import Pruned
from roundweave.storage.rounds.splits import NAMES, named_partitions
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.digests import match_tensors, update_tensors
from roundweave.storage.values.state import OBSERVED
from roundweave.storage.values.tensors import shown_array

SHORT = ("params", "buffers", "frozen", "scores", "bookkeeping", "metrics")
"""The groups whose variables have short names in `Run.ds`. Of equal names, the first one is short."""


@dataclass(frozen=True)
class Arrays:
    """The stored arrays of some rounds of a run.

    `rounds` ascend, and `record` gives the commit of a round. Values of `absent` rounds are NaN.
    """

    run: str
    store: RoundStore
    rounds: Sequence[int]
    record: Callable[[int], Commit]
    absent: Pruned

    def named(self, name: str) -> xr.DataArray:
        """Return one tensor of the state by name or path, ``(round, *shape)``.

        A frozen one is ``(*shape)``, read at once.

        Raises `TensorMissing` for an unknown name.
        """
        path = self._path(name)
        array = xr.DataArray(self.tensor(path), name=path.rpartition("/")[2])
        return array.assign_coords(round=list(self.rounds)) if "round" in array.dims else array.load()

    def _path(self, name: str) -> str:
        paths = list(self.schema.state(1))
        if not isinstance(name, str):
            raise TensorMissing(
                f"{name!r} is no name of a tensor; run.tensors lists them, run.round(3) is a round"
            )
        name = dict(self.schema.layout.aliases).get(name, name)
        for path in (name, *(f"{group}/{name}" for group in ("params", "buffers", "frozen"))):
            if path in paths:
                return path
        hint = nearest(name, [path.partition("/")[2] for path in paths], f"it has {', '.join(paths)}")
        raise TensorMissing(f"run {self.run} stores no tensor {name!r}; {hint}")

    def data_set(self) -> xr.Dataset:
        """Return the state and the numbers, by short names where `SHORT` says so, and otherwise by path."""
        variables = self.state() | self.numbers()
        taken_names = {*self.coordinates(), *(dim for variable in variables.values() for dim in variable.dims)}
        named = {}
        for path in sorted(variables, key=_rank):
            short = path.partition("/")[2]
            name = path if short in taken_names or _rank(path) == len(SHORT) else short
            taken_names.add(name)
            named[name] = variables[path]
        return xr.Dataset(named, self.coordinates())

    def data_tree(self) -> xr.DataTree:
        """Everything that is stored, in groups. A variable with the name of a coordinate gets a ``_`` appended."""
        groups: dict[str, dict[str, xr.DataArray]] = {}
        known = self.coordinates()
        everything = self.state() | self.updates() | self.matches() | self.numbers() | self.splits()
        for path, variable in everything.items():
            group, _, name = path.rpartition("/")
            beside = {NAMES: known[NAMES]} if NAMES in known and "partition" in variable.dims else {}
            array = xr.DataArray(variable, beside)  # a group inherits coordinates that are an index, and no others
            groups.setdefault(group, {})[f"{name}_" if name in known else name] = array
        root = {"/": xr.Dataset(coords=known)}
        return xr.DataTree.from_dict(root | {group: xr.Dataset(named) for group, named in groups.items()})

    @property
    def schema(self) -> Schema:
        """The schema of the run."""
        return self.store.schema

    def coordinates(self) -> dict[str, Any]:
        """Return the coordinates of all arrays: the numbers of rounds and partitions, and partitions' names."""
        numbers = range(self.schema.partitions)
        return {"round": list(self.rounds), **named_partitions(self.store.partition_names, numbers)}

    def tensor(self, path: str) -> xr.Variable:
        """Return the tensor of the state at a path, ``(round, *shape)``, or ``(*shape)`` for a frozen one."""
        spec = self.store.tensors.arrays[path]
        axes = int("round" in spec.dims)

        def read(row: int = -1) -> np.ndarray:
            commit = self.record(self.rounds[row])
            there = not axes or self.absent.has_state(commit.round)
            return shown_array(self.store.tensors.read_tensor(commit, path) if there else NOTHING)

        whole = not axes or all(map(self.absent.has_state, self.rounds))
        shape = (len(self.rounds), *spec.shape[1:]) if axes else spec.shape
        return lazy_variable(shape, spec.dims, spec.dtype if whole else _with_nan(spec.dtype), axes, read)

    def state(self) -> dict[str, xr.Variable]:
        """Return every tensor of the state, ``(round, *shape)``, by path."""
        return {path: self.tensor(path) for path in self.schema.state(1)}

    def updates(self) -> dict[str, xr.Variable]:
        """Return every tensor of the accepted updates, ``(round, partition, *shape)``, by path; NaN if absent.

        The group ``updates`` has directions, ``arrived`` has buffers after local training, ``extras/<slot>`` has
        auxiliary vectors, ``carry/<slot>`` has client state, and ``observed`` has what maps observed for the
        reduce. Integers are shown as float64.
        """

        def read(commit: Commit, partition: int) -> Mapping[str, torch.Tensor]:
            if partition not in commit.accepted or not self.absent.has_update(commit.round, partition):
                return {}
            update = self.store.tensors.read_update(commit, partition)
            tensors = update_tensors(update, self.schema.layout, self.schema.observed)
            return {_shown(path): tensor for path, tensor in tensors.items()}

        specs = {f"{group}/{spec.name}": spec for group, each in self.schema.sent().items() for spec in each}
        return {
            _shown(path): self._of_partitions(_shown(path), spec.dtype, spec.shape, read)
            for path, spec in specs.items()
        }

    def matches(self) -> dict[str, xr.Variable]:
        """Return permutations and similarities, (round, partition, …, unit), by path; NaN marks absent ones."""

        def read(commit: Commit, partition: int) -> Mapping[str, torch.Tensor]:
            record = commit.updates.get(partition)
            matched = record is not None and record.match is not None
            there = matched and self.absent.has_update(commit.round, partition)
            return match_tensors(self.store.tensors.read_match(commit, partition)) if there else {}

        specs = self.schema.matching(1).values()
        return {spec.path: self._of_partitions(spec.path, spec.dtype, spec.shape[2:], read) for spec in specs}

    def _of_partitions(
        self,
        path: str,
        dtype: str,
        shape: tuple[int, ...],
        read: Callable[[Commit, int], Mapping[str, torch.Tensor]],
    ) -> xr.Variable:
        """Return an array ``(round, partition, *shape)`` of what `read` gives under a path; NaN if absent."""

        def values(row: int, partition: int) -> np.ndarray:
            return shown_array(read(self.record(self.rounds[row]), partition).get(path, NOTHING))

        dims = ("round", "partition", *(f"{path}.{axis}" for axis in range(len(shape))))
        sizes = (len(self.rounds), self.schema.partitions, *shape)
        return lazy_variable(sizes, dims, _with_nan(dtype), 2, values)

    def splits(self) -> dict[str, xr.Variable]:
        """Return the partition of each example under each split, (example,), by path; -1 for held-out examples."""
        stored, used = set(self.store.splits.numbers()), dict[int, Commit]()
        for commit in map(self.record, reversed(self.rounds)):
            if commit.split:
                used.setdefault(commit.split.number, commit)
            if used.keys() >= stored:
                break
        read = self.store.splits.read
        return {f"partitions/{n}": xr.Variable(("example",), read(used[n])) for n in sorted(used)}

    def numbers(self) -> dict[str, xr.Variable]:
        """Return bookkeeping, metrics and scores, (round,) or (round, partition), by path; NaN if absent."""
        numbers = Numbers.read(self.store.log, self.rounds)
        columns = {path: numbers.columns[path] for path in numbers.columns if path.startswith("scores/")}
        columns["bookkeeping/seconds"] = numbers.column("bookkeeping/seconds")
        variables = {path: xr.Variable("round", column) for path, column in columns.items()}
        names = [*UPDATES, *(f"metrics/{name}" for name in numbers.names("metrics"))]
        return variables | {path: self._number(path) for path in names}

    def _number(self, path: str) -> xr.Variable:
        """Read the numbers of partitions at one path, round by round, to bound the memory of many partitions."""
        shape = (self.schema.partitions,)

        def read(row: int) -> np.ndarray:
            commit, numbers = self.record(self.rounds[row]), np.full(shape, np.nan)
            for partition, update in commit.updates.items():
                numbers[partition] = (
                    UPDATES[path](update)
                    if path in UPDATES
                    else update.metrics.get(path.partition("/")[2], np.nan)
                )
            if path == "bookkeeping/accepted":
                numbers[list(commit.absent)] = ABSENT
            return numbers

        return lazy_variable((len(self.rounds), *shape), ("round", "partition"), "float64", 1, read)


UPDATES: dict[str, Callable[[UpdateRecord], float]] = {
    "bookkeeping/weight": lambda update: update.weight,
    "bookkeeping/accepted": lambda update: update.refused is None,
    "bookkeeping/map_seconds": lambda update: update.seconds,
}
"""The numbers of an update by path, besides its metrics."""


ABSENT = -1.0
"""The number of an absent partition, next to 1 for accepted and 0 for refused."""


def arrays(run: StoredRun, kept: bool = False) -> Arrays:
    """Return the arrays of the committed rounds of a run, or only of the rounds whose states are `kept`."""
    absent = run.absent
    rounds = list(filter(absent.has_state, run.committed)) if kept else run.committed
    return Arrays(run.name, run._store, rounds, run._commit, absent)


WITH_NAN = ("bfloat16", "float16", "float32", "float64", "complex64", "complex128")
"""The dtypes that have a NaN."""


NOTHING = torch.tensor(torch.nan)
"""The value shown for updates that were not accepted and for tensors that are not stored."""


def _with_nan(dtype: str) -> str:
    """Return the dtype itself if it has a NaN, otherwise float64, to show values next to NaN."""
    return dtype if dtype in WITH_NAN else "float64"


def _rank(path: str) -> int:
    group = path.partition("/")[0]
    return SHORT.index(group) if group in SHORT else len(SHORT)


def _shown(path: str) -> str:
    """Return the shown path of an update's tensor. The group ``updates`` has parameters alone."""
    if path.startswith("updates/buffers/"):
        return f"arrived/{path.removeprefix('updates/buffers/')}"
    within = path.startswith(("updates/extras/", f"{OBSERVED}/"))
    return path.removeprefix("updates/") if within else path


@dataclass(eq=False)
class StoredRows(BackendArray):
    """An array that xarray reads lazily. `read` gives the values at an index of the first `axes` axes."""

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: int
    read: Callable[..., np.ndarray]

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """The verified values at an index. Raises `StoreDamaged`."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._values)

    def _values(self, key: tuple[Any, ...]) -> np.ndarray:
        """Return the values at an index that has a slice, an integer or an array for each axis independently."""
        places = [np.arange(size)[part] for size, part in zip(self.shape, key[: self.axes], strict=False)]
        sizes = tuple(place.size for place in places)
        values = np.empty((*sizes, *self.shape[self.axes :]), self.dtype)
        for number in np.ndindex(sizes):
            values[number] = self.read(*(int(p.reshape(-1)[n]) for p, n in zip(places, number, strict=True)))
        for axis in reversed(range(self.axes, len(key))):
            values = values[(slice(None),) * axis + (key[axis],)]
        return values.squeeze(tuple(axis for axis, place in enumerate(places) if not place.ndim))


def lazy_variable(
    shape: tuple[int, ...], dims: Iterable[str], dtype: str, axes: int, read: Callable[..., np.ndarray]
) -> xr.Variable:
    """Return a lazy variable.

    `read` gives its values at an index of the first `axes` axes; bfloat16 becomes float32.
    """
    shown = np.dtype("float32" if dtype == "bfloat16" else dtype)
    rows = indexing.LazilyIndexedArray(StoredRows(shape, shown, axes, read))
    return xr.Variable(tuple(dims), rows, {"logical_dtype": dtype})
