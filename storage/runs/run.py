"""The notebook's read-only view of stored runs. Looking needs neither Prefect nor Dask, and never writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import NotARun, TensorMissing
from storage.places.base import Place
from storage.places.schemes import place_of
from storage.rounds.commits import Commit
from storage.rounds.lease import read_lease
from storage.rounds.store import RoundStore
from storage.runs.figures import plot_history
from storage.runs.names import SUFFIX, default_root, nearest, run_name, run_path
from storage.runs.round import Round

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure


def open_run(run: str | Path, root: str | Path | None = None) -> Run:
    """A run by its name under the root, its folder's name with ``.zarr`` or without, or by its path; `NotARun`."""
    named = run_path(root, run)
    there = _names(named.parent)
    if named.name in there:
        return Run(named)
    for path in (Path(root or default_root(), run), run):
        if place_of(path).names():
            return Run(path)
    names = [run_name(Path(name)) for name in there]
    hint = nearest(str(run), names, f"there are {', '.join(names) or 'none'}")
    raise NotARun(f"no run {str(run)!r} under {named.parent}; {hint}")


def list_runs(root: str | Path | None = None) -> list[Run]:
    """All runs under the root, the oldest first."""
    folder, runs = Path(root or default_root()), []
    for name in _names(folder):
        try:
            runs.append(Run(folder / name))
        except NotARun:
            continue
    return sorted(runs, key=lambda run: run.created)


def _names(root: Path) -> list[str]:
    return [name for name in place_of(root).names() if name.endswith(SUFFIX)]


class Run:
    """A stored run as it was when it was opened, or last refreshed; `run["fc1.weight"]` is a tensor over rounds.

    What is recorded is read then, tensors and numbers when they are asked for.
    """

    def __init__(self, where: str | os.PathLike[str] | Place) -> None:
        self._place = place_of(where)
        self.refresh()

    def refresh(self) -> Run:
        """Look again: the same view, with the rounds that came since."""
        self._store = RoundStore(self._place)
        log = self._store.log
        self._rounds = log.rounds()
        self._failure, self._damaged = log.failure, log.damaged()
        self._lease = read_lease(self._place)
        self._metrics = self._store.history.names("metrics")
        self._scores = [name for name in self._store.history.names("scores") if name != "loss"]
        self._commits: dict[int, Commit] = {}
        return self

    @property
    def path(self) -> Path:
        """Its place as a path."""
        return self._store.path

    @property
    def name(self) -> str:
        """The run's name under its root."""
        return run_name(self.path)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration it was started with."""
        config: dict[str, Any] = self._store.attributes["config"]
        return config

    @property
    def algorithm(self) -> str:
        """The name of its algorithm, of a function of the user's its own; ``merge`` where networks were merged."""
        try:
            name: Any = self.config["algorithm"]["name"]
            return str(name["name"] if isinstance(name, dict) else name)
        except (KeyError, TypeError) as error:
            raise NotARun(f"{self.path}: its record names no algorithm; Roundweave did not make it") from error

    @property
    def attributes(self) -> dict[str, Any]:
        """All that was recorded at its start: config, algorithm, data, fingerprint, versions."""
        return self._store.attributes

    @property
    def created(self) -> float:
        """Seconds since the epoch."""
        return float(self._store.attributes["created"])

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
        """The last committed round; 0 is the initial state."""
        if not self._rounds:
            raise NotARun(f"{self.path} has no committed round; start the run again")
        return self._rounds[-1]

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
        """Why the run failed, None where it did not."""
        return self._failure

    @property
    def damaged(self) -> list[int]:
        """The rounds that were found damaged when the run went on, and were done again."""
        return self._damaged

    @property
    def status(self) -> str:
        """``complete``, ``running``, ``failed`` or ``interrupted``: read from the store alone."""
        if self._lease and self._lease.fresh:
            return "running"
        if self.failure:
            return "failed"
        return "complete" if self.done >= self.rounds or self.stop else "interrupted"

    @property
    def scores(self) -> list[str]:
        """The names of its scores besides the loss."""
        return self._scores

    @property
    def tensors(self) -> list[str]:
        """The names that ``run[name]`` knows; a parameter or buffer may drop its group."""
        return list(self._store.schema.state(1))

    def __getitem__(self, name: str) -> xr.DataArray:
        """A tensor over rounds, (round, *shape), read when its values are used; raises `TensorMissing`.

        bfloat16 is shown as float32; frozen tensors have no rounds, (*shape).
        """
        import xarray as xr  # here and below: a flow that only trains need not wait for it

        path = self._find(name)
        group, _, variable = path.rpartition("/")
        with xr.open_zarr(
            self._place.zarr(), group=group, consolidated=False, chunks=None, mask_and_scale=False
        ) as dataset:
            array: xr.DataArray = dataset[variable]
        if "round" in array.dims:
            array = array.isel(round=slice(0, self.done + 1)).assign_coords(round=np.arange(self.done + 1))
        if array.attrs["logical_dtype"] == "bfloat16":
            array = array.copy(data=_widened(array.values))
        return array

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

        columns = {name: self._numbers(f"scores/{name}") for name in ("loss", *self.scores)}
        columns["seconds"] = self._numbers("bookkeeping/seconds")
        accepted = self._numbers("bookkeeping/accepted")
        weight = np.where(accepted == 1, self._numbers("bookkeeping/weight"), 0.0)
        for name, column in _columns(self._metrics, set(columns) | COUNTS).items():
            columns[column] = _weighted_mean(self._numbers(f"metrics/{name}"), weight)
        columns["examples"] = weight.sum(axis=1)
        columns["accepted"] = np.nansum(accepted, axis=1)
        table = pd.DataFrame(columns, index=pd.RangeIndex(self.done + 1, name="round"))
        return table.loc[self._rounds].astype({"examples": int, "accepted": int})

    def _numbers(self, path: str) -> np.ndarray:
        """The numbers of rounds 0 to the last committed one, (round,) or (round, partition)."""
        return self._store.history.read(path, self.done + 1)

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
        layout = self._store.schema.layout
        parameters = sum(spec.size for spec in layout.params)
        uncommitted = " (1 uncommitted)" if self._store.has_row(self.done + 1) else ""
        parts = (
            self.name,
            self.status,
            f"{self.done}/{self.rounds} rounds{uncommitted}",
            self.algorithm,
            f"{self.partitions} partitions",
            f"{parameters:,} params",
            f"{self._store.row_bytes() * (self.done + 1) / 1e6:.3g} MB",
        )
        return f"<Run {' · '.join(parts)}>"


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


def _widened(bits: np.ndarray) -> np.ndarray:
    """The bits of bfloat16, uint16, as the float32 numbers that they are, of the same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
