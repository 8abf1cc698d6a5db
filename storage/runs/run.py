"""The notebook's read-only view of stored runs. Looking needs neither Prefect nor Dask, and never writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import NotARun, StoreError, TensorMissing
from storage.places.addresses import Where, above, address_of, joined, last_name
from storage.places.base import Place
from storage.places.schemes import place_of
from storage.rounds.commits import Commit
from storage.rounds.lease import read_lease
from storage.rounds.store import RoundStore
from storage.runs.figures import plot_history
from storage.runs.names import SUFFIX, default_root, nearest, run_address, run_name
from storage.runs.round import Round

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure


def open_run(run: Where, root: Where | None = None) -> Run:
    """A run by its name under the root, with ``.zarr`` or without, or by its address; raises `NotARun`."""
    named = run_address(root, run)
    there = _names(above(named))
    if last_name(named) in there:
        return Run(named)
    for address in (joined(root or default_root(), run), run):
        if place_of(address).names():
            return Run(address)
    names = list(map(run_name, there))
    hint = nearest(str(run), names, f"there are {', '.join(names) or 'none'}")
    raise NotARun(f"no run {str(run)!r} under {above(named)}; {hint}")


def list_runs(root: Where | None = None) -> list[Run]:
    """All runs under the root that can be opened, the oldest first."""
    return [run for run in looked_through(root).values() if isinstance(run, Run)]


def looked_through(root: Where | None = None) -> dict[str, Run | StoreError]:
    """Each run under the root by name, the oldest first, then those that cannot be opened, and why."""
    root = address_of(root or default_root())
    began: list[tuple[float, str, Run]] = []
    damaged: dict[str, Run | StoreError] = {}
    for name in _names(root):
        try:
            run = Run(joined(root, name))
            began.append((run.created, run.name, run))
        except StoreError as error:
            damaged[name.removesuffix(SUFFIX)] = error
    return {name: run for _, name, run in sorted(began, key=lambda each: each[:2])} | damaged


def _names(root: Where) -> list[str]:
    return [name for name in place_of(root).names() if name.endswith(SUFFIX)]


class Run:
    """A stored run as it was when it was opened, or last refreshed; `run["fc1.weight"]` is a tensor over rounds.

    What is recorded is read then, tensors and numbers when they are asked for.
    """

    def __init__(self, where: Where | Place) -> None:
        self._place = place_of(where)
        self.refresh()

    def refresh(self) -> Run:
        """Look again: the same view, with the rounds that came since."""
        self._store = RoundStore(self._place)
        self._config, self._algorithm, self._created = _recorded(self._store)
        log = self._store.log
        self._rounds, self._done = log.rounds(), log.newest()
        self._damaged = [round for round in log.damaged() if round in self._rounds or round > self.done]
        self._lease = read_lease(self._place)
        self._metrics = self._store.history.names("metrics")
        self._scores = [name for name in self._store.history.names("scores") if name != "loss"]
        self._commits: dict[int, Commit] = {}
        self._whole: list[int] | None = None
        return self

    @property
    def address(self) -> str:
        """Where it is, as text: a path, or ``scheme://…``."""
        return self._store.address

    @property
    def path(self) -> Path:
        """Its folder; raises `UsageError` where it is not on a disk of this machine."""
        return self._store.path

    @property
    def name(self) -> str:
        """The run's name under its root."""
        return run_name(self.address)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration it was started with."""
        config: dict[str, Any] = self._store.attributes["config"]
        return config

    @property
    def algorithm(self) -> str:
        """The name of its algorithm, ``FILE.py:function`` of the user's; ``merge`` where networks were merged."""
        return self._algorithm

    @property
    def attributes(self) -> dict[str, Any]:
        """All that was recorded at its start: config, algorithm, data, fingerprint, versions."""
        return self._store.attributes

    @property
    def created(self) -> float:
        """Seconds since the epoch."""
        return self._created

    @property
    def rounds(self) -> int:
        """How many rounds it is to have."""
        return self._store.rounds

    @property
    def partitions(self) -> int:
        """Into how many partitions its examples are split."""
        return self._store.schema.partitions

    @property
    def done(self) -> int:
        """The last round whose record is whole; 0 is the initial state."""
        if self._done is None:
            raise NotARun(f"{self.address} has no committed round; start the run again")
        return self._done

    @property
    def committed(self) -> list[int]:
        """The committed rounds whose records are whole, ascending; each record is verified."""
        if self._whole is None:
            self._whole = self._store.log.whole([round for round in self._rounds if round <= self.done])
        return self._whole

    @property
    def kept(self) -> list[int]:
        """The committed rounds whose states are there, ascending; those of others went when the run was pruned."""
        return self._store.tensors.kept(self.committed)

    @property
    def lost(self) -> list[int]:
        """The rounds without a whole record; those after `done` are done again when the run goes on."""
        before = set(range(self.done)) - set(self.committed)
        return sorted(before | {round for round in self._rounds if round > self.done})

    @property
    def digest(self) -> str:
        """The digest of the last committed state."""
        return self._commit(self.done).state

    @property
    def stop(self) -> str | None:
        """Why the run ended before its last round, None where it did not."""
        return self._commit(self.done).stop

    @property
    def failure(self) -> str | None:
        """Why the last writer of the run failed, None where it did not."""
        return self._lease.failure if self._lease else None

    @property
    def damaged(self) -> list[int]:
        """The rounds that were found damaged when the run went on, and were done again."""
        return self._damaged

    @property
    def status(self) -> str:
        """``complete``, ``running``, ``failed`` or ``interrupted``: read from the store alone."""
        if self._lease and self._lease.fresh:
            return "running"
        if self.done >= self.rounds or self.stop:
            return "complete"
        return "failed" if self.failure else "interrupted"

    @property
    def scores(self) -> list[str]:
        """The names of its scores besides the loss."""
        return self._scores

    @property
    def tensors(self) -> list[str]:
        """The names that ``run[name]`` knows; a parameter or buffer may drop its group."""
        return list(self._store.schema.state(1))

    def __getitem__(self, name: str) -> xr.DataArray:
        """A tensor over the rounds that have it, (round, *shape), read when its values are used; `TensorMissing`.

        bfloat16 is shown as float32; frozen tensors have no rounds, (*shape).
        """
        from storage.runs.arrays import tensor_over_rounds  # a flow that only trains need not wait for xarray

        return tensor_over_rounds(self._store.tensors, self._find(name), self.kept, self._commit)

    def _find(self, name: str) -> str:
        for path in (name, f"params/{name}", f"buffers/{name}", f"frozen/{name}"):
            if path in self.tensors:
                return path
        aliases = dict(self._store.schema.layout.aliases)
        if name in aliases:
            return self._find(aliases[name])
        names = [path.partition("/")[2] for path in self.tensors]
        hint = nearest(name, names, f"it has {', '.join(self.tensors)}")
        raise TensorMissing(f"run {self.name} stores no tensor {name!r}; {hint}")

    def history(self) -> pd.DataFrame:
        """A row for each committed round: loss and other scores, seconds, metrics, examples, accepted updates.

        A metric is the mean over the accepted updates that report it, weighted by their examples. Where its name
        is that of a score or of the bookkeeping, its column is ``map_<name>``.
        """
        import pandas as pd

        scores = ("loss", *self.scores)
        told = {"bookkeeping": ("seconds", "accepted", "weight"), "scores": scores, "metrics": self._metrics}
        paths = [f"{group}/{name}" for group, names in told.items() for name in names]
        numbers = self._store.history.read_all(paths, self.done + 1)  # (round,) or (round, partition)
        columns = {name: numbers[f"scores/{name}"] for name in scores}
        columns["seconds"] = numbers["bookkeeping/seconds"]
        accepted = numbers["bookkeeping/accepted"]
        weight = np.where(accepted == 1, numbers["bookkeeping/weight"], 0.0)
        for name, column in _columns(self._metrics, set(columns) | COUNTS).items():
            columns[column] = _weighted_mean(numbers[f"metrics/{name}"], weight)
        columns["examples"] = weight.sum(axis=1)
        columns["accepted"] = np.nansum(accepted, axis=1)
        table = pd.DataFrame(columns, index=pd.RangeIndex(self.done + 1, name="round"))
        return table.loc[self.committed].astype({"examples": int, "accepted": int})

    def round(self, round: int) -> Round:
        """One committed round; negative numbers count from the end; raises `RoundMissing`."""
        number = round if round >= 0 else self.done + 1 + round
        return Round(self._store, self._commit(number))

    def _commit(self, round: int) -> Commit:
        """The record of a round, read once."""
        if round not in self._commits:
            if round not in self._rounds:
                raise self._store.log.missing(round, self._rounds)
            self._commits[round] = self._store.log.read(round)
        return self._commits[round]

    def plot(self) -> Figure:
        """Losses and scores over rounds."""
        return plot_history(self.history(), self.scores, self.name)

    def __repr__(self) -> str:
        parameters = sum(spec.size for spec in self._store.schema.layout.params)
        uncommitted = " (1 uncommitted)" if self._store.tensors.has_row(self.done + 1) else ""
        parts = (
            self.name,
            self.status,
            f"{self.done}/{self.rounds} rounds{uncommitted}",
            self.algorithm,
            f"{self.partitions} partitions",
            f"{parameters:,} params",
            f"{self._store.tensors.row_bytes() * (self.done + 1) / 1e6:.3g} MB",
        )
        return f"<Run {' · '.join(parts)}>"


def _recorded(store: RoundStore) -> tuple[dict[str, Any], str, float]:
    """Configuration, algorithm and when it began; `NotARun` for a record of another form."""
    try:
        config, created = store.attributes["config"], float(store.attributes["created"])
        name: Any = config["algorithm"]["name"]
        own = f"{Path(name['path']).name}:{name['name']}".lstrip(":") if isinstance(name, dict) else str(name)
        return config, own, created
    except (KeyError, TypeError, ValueError) as error:
        raise NotARun(f"{store.place}: its record names no algorithm or no beginning; it is damaged") from error


COUNTS = {"examples", "accepted"}
"""Further columns of a history."""


BOOKKEEPING = {"seconds", "weight", "accepted", "map_seconds"}
"""Arrays of the bookkeeping; a metric of such a name is another number."""


def _columns(metrics: list[str], columns: set[str]) -> dict[str, str]:
    """The column of each metric: its name, else that with ``map_`` before it as often as it takes."""
    renamed = [name for name in metrics if name in columns | BOOKKEEPING]
    named = {name: name for name in metrics if name not in renamed}
    for name in renamed:
        column = f"map_{name}"
        while column in columns | set(named.values()):
            column = f"map_{column}"
        named[name] = column
    return named


def _weighted_mean(metric: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The mean over partitions, (round, partition) -> (round,); NaN where no accepted update tells of it."""
    told = np.where(np.isfinite(metric), weight, 0.0)
    total = told.sum(axis=1)
    mean: np.ndarray = np.nansum(metric * told, axis=1) / np.where(total > 0, total, np.nan)
    return mean
