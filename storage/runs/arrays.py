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
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.digests import match_tensors, update_tensors
from roundweave.storage.values.state import OBSERVED
from roundweave.storage.values.tensors import shown_array

SHORT = ("params", "buffers", "frozen", "scores", "bookkeeping", "metrics")
"""The groups whose variables go by short names in `Run.ds`. Where two have the same name, the first has it."""


@dataclass(frozen=True)
class Arrays:
    """The stored arrays of some rounds of a run.

    `rounds` ascend, and `record` gives the commit of each. What is `absent` of them is shown as NaN.
    """

    run: str
    store: RoundStore
    rounds: Sequence[int]
    record: Callable[[int], Commit]
    absent: Pruned

    def named(self, name: str) -> xr.DataArray:
        """One tensor of the state by name or path, (round, *shape). A frozen one is (*shape) and read at once.

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
        """The state and the numbers, by short names where `SHORT` says so, and otherwise by path."""
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
        groups: dict[str, dict[str, xr.Variable]] = {}
        everything = self.state() | self.updates() | self.matches() | self.numbers() | self.splits()
        for path, variable in everything.items():
            group, _, name = path.rpartition("/")
            groups.setdefault(group, {})[f"{name}_" if name in self.coordinates() else name] = variable
        root = {"/": xr.Dataset(coords=self.coordinates())}
        return xr.DataTree.from_dict(root | {group: xr.Dataset(named) for group, named in groups.items()})

    @property
    def schema(self) -> Schema:
        """The schema of the run."""
        return self.store.schema

    def coordinates(self) -> dict[str, Any]:
        """The coordinates of all arrays: the numbers of rounds and partitions."""
        return {"round": list(self.rounds), "partition": range(self.schema.partitions)}

    def tensor(self, path: str) -> xr.Variable:
        """The tensor of the state at a path, (round, *shape), or (*shape) for a frozen one."""
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
        """Every tensor of the state, (round, *shape), by path."""
        return {path: self.tensor(path) for path in self.schema.state(1)}

    def updates(self) -> dict[str, xr.Variable]:
        """Every tensor of the accepted updates, (round, partition, *shape), by path; NaN where there is none.

        Directions are in the group ``updates``, buffers after local training in ``arrived``, and auxiliary vectors
        and client state in ``extras/<slot>`` and ``carry/<slot>``, and what maps observed for the reduce in
        ``observed``. Integers are shown as float64.
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
        """Permutations and similarities, (round, partition, …, unit), by path; NaN where there are none."""

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
        """An array (round, partition, *shape) of what `read` gives under a path; NaN where it gives nothing."""

        def values(row: int, partition: int) -> np.ndarray:
            return shown_array(read(self.record(self.rounds[row]), partition).get(path, NOTHING))

        dims = ("round", "partition", *(f"{path}.{axis}" for axis in range(len(shape))))
        sizes = (len(self.rounds), self.schema.partitions, *shape)
        return lazy_variable(sizes, dims, _with_nan(dtype), 2, values)

    def splits(self) -> dict[str, xr.Variable]:
        """The partition of each example under each split, (example,), by path; -1 for those held out."""
        stored, used = set(self.store.splits.numbers()), dict[int, Commit]()
        for commit in map(self.record, reversed(self.rounds)):
            if commit.split:
                used.setdefault(commit.split.number, commit)
            if used.keys() >= stored:
                break
        read = self.store.splits.read
        return {f"partitions/{n}": xr.Variable(("example",), read(used[n])) for n in sorted(used)}

    def numbers(self) -> dict[str, xr.Variable]:
        """Bookkeeping, metrics and scores, (round,) or (round, partition), by path; NaN where there is none."""
        numbers = Numbers.read(self.store.log, self.rounds)
        columns = {path: numbers.columns[path] for path in numbers.columns if path.startswith("scores/")}
        columns["bookkeeping/seconds"] = numbers.column("bookkeeping/seconds")
        variables = {path: xr.Variable("round", column) for path, column in columns.items()}
        names = [*UPDATES, *(f"metrics/{name}" for name in numbers.names("metrics"))]
        return variables | {path: self._number(path) for path in names}

    def _number(self, path: str) -> xr.Variable:
        """The numbers of partitions at one path, read round by round, as those of many may take much memory."""
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
"""Stands among those who were accepted (1), or refused (0), for a partition that was absent."""


def arrays(run: StoredRun, kept: bool = False) -> Arrays:
    """The arrays of the committed rounds of a run, or of those whose states are `kept`."""
    absent = run.absent
    rounds = list(filter(absent.has_state, run.committed)) if kept else run.committed
    return Arrays(run.name, run._store, rounds, run._commit, absent)


WITH_NAN = ("bfloat16", "float16", "float32", "float64", "complex64", "complex128")
"""The dtypes that have a NaN."""


NOTHING = torch.tensor(torch.nan)
"""Shown in place of updates that were not accepted and of tensors that are not stored."""


def _with_nan(dtype: str) -> str:
    """The dtype itself where it has a NaN, otherwise float64, to show values of this dtype next to NaN."""
    return dtype if dtype in WITH_NAN else "float64"


def _rank(path: str) -> int:
    group = path.partition("/")[0]
    return SHORT.index(group) if group in SHORT else len(SHORT)


def _shown(path: str) -> str:
    """The path under which a tensor of an update is shown: not within ``updates``, whose names are parameters."""
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
        """The verified values at an index; raises `StoreDamaged`."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._values)

    def _values(self, key: tuple[Any, ...]) -> np.ndarray:
        """The values at an index that has a slice, an integer or an array for each axis independently."""
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
    """A lazy variable. `read` gives its values at an index of the first `axes` axes; bfloat16 becomes float32."""
    shown = np.dtype("float32" if dtype == "bfloat16" else dtype)
    rows = indexing.LazilyIndexedArray(StoredRows(shape, shown, axes, read))
    return xr.Variable(tuple(dims), rows, {"logical_dtype": dtype})
