"""The notebook's read-only view of stored runs. Looking needs neither Prefect nor Dask, and never writes."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import NotARun, TensorMissing
from storage.rounds.lease import read_lease
from storage.rounds.schema import ROUND_METRICS
from storage.rounds.store import RoundStore
from storage.runs.round import Round

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure


SUFFIX = ".zarr"


def default_root() -> Path:
    """The folder of all runs: ``$ROUNDWEAVE_ROOT``, else ``runs`` here."""
    return Path(os.environ.get("ROUNDWEAVE_ROOT", "runs"))


def run_path(root: Path, name: str) -> Path:
    """Where a run of this name lies."""
    return root / f"{name}{SUFFIX}"


def open_run(run: str | Path, root: str | Path | None = None) -> Run:
    """A run by its name under the root, or by its path; raises `NotARun`."""
    named = Path(root or default_root(), f"{run}{SUFFIX}")
    if named.is_dir():
        return Run(named)
    if Path(run).is_dir():
        return Run(Path(run))
    names = [path.stem for path in _paths(Path(root or default_root()))]
    nearest = difflib.get_close_matches(str(run), names, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names) or 'none'}"
    raise NotARun(f"no run {str(run)!r} under {named.parent}; {hint}")


def list_runs(root: str | Path | None = None) -> list[Run]:
    """All runs under the root, the oldest first."""
    runs = []
    for path in _paths(Path(root or default_root())):
        try:
            runs.append(Run(path))
        except NotARun:
            continue
    return sorted(runs, key=lambda run: run.created)


def _paths(root: Path) -> list[Path]:
    return sorted(root.glob(f"*{SUFFIX}"))


class Run:
    """A stored run as it is now; `run["fc1.weight"]` is a tensor over all committed rounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = RoundStore(path)

    @property
    def _store(self) -> RoundStore:
        self._opened = self._opened.refreshed()
        return self._opened

    @property
    def name(self) -> str:
        """The run's name under its root."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration it was started with."""
        config: dict[str, Any] = self._store.attributes["config"]
        return config

    @property
    def algorithm(self) -> str:
        """The name of its algorithm, of a function of the user's its own; ``merge`` where networks were merged."""
        name: Any = self.config["algorithm"]["name"]
        return str(name["name"] if isinstance(name, dict) else name)

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
        rounds = self._store.log.rounds()
        if not rounds:
            raise NotARun(f"{self.path} has no committed round; start the run again")
        return rounds[-1]

    @property
    def digest(self) -> str:
        """The digest of the last committed state."""
        return self._store.log.read(self.done).state

    @property
    def stop(self) -> str | None:
        """Why the run ended before its last round, None where it did not."""
        return self._store.log.read(self.done).stop

    @property
    def failure(self) -> str | None:
        """Why the run failed, None where it did not."""
        return self._store.log.failure

    @property
    def damaged(self) -> list[int]:
        """The rounds that were found damaged when the run went on, and were done again."""
        return self._store.log.damaged()

    @property
    def status(self) -> str:
        """``complete``, ``running``, ``failed`` or ``interrupted``: read from the store alone."""
        lease = read_lease(self._store.log.folder)
        if lease and lease.fresh:
            return "running"
        if self.failure:
            return "failed"
        return "complete" if self.done >= self.rounds or self.stop else "interrupted"

    @property
    def tensors(self) -> list[str]:
        """The names that ``run[name]`` knows; a parameter or buffer may drop its group."""
        return list(self._store.schema.state(1))

    def __getitem__(self, name: str) -> xr.DataArray:
        """A tensor over rounds, (round, *shape), read when its values are used; raises `TensorMissing`."""
        import xarray as xr  # here and below: a flow that only trains need not wait for it

        path = self._find(name)
        group, _, variable = path.rpartition("/")
        with xr.open_zarr(
            self.path, group=group, consolidated=False, chunks=None, mask_and_scale=False
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
        nearest = difflib.get_close_matches(name, [path.partition("/")[2] for path in self.tensors], 1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(self.tensors)}"
        raise TensorMissing(f"run {self.name} stores no tensor {name!r}; {hint}")

    def history(self) -> pd.DataFrame:
        """A row for each committed round: loss, accuracy, seconds; train_loss, examples and accepted updates."""
        import pandas as pd

        columns = {name: self._store.read_metric(name) for name in ROUND_METRICS}
        loss, weight, accepted = (self._store.read_metric(n) for n in ("train_loss", "weight", "accepted"))
        weight = np.where(accepted == 1, weight, 0.0)
        told = np.where(np.isfinite(loss), weight, 0.0)
        total = told.sum(axis=1)
        columns["train_loss"] = np.nansum(loss * told, axis=1) / np.where(total > 0, total, np.nan)
        columns["examples"] = weight.sum(axis=1)
        columns["accepted"] = np.nansum(accepted, axis=1)
        table = pd.DataFrame(columns, index=pd.RangeIndex(len(loss), name="round"))
        return table.loc[: self.done].astype({"examples": int, "accepted": int})

    def round(self, round: int) -> Round:
        """One committed round; negative numbers count from the end; raises `RoundMissing`."""
        return Round(self._store, self._store.log.read(round if round >= 0 else self.done + 1 + round))

    def plot(self) -> Figure:
        """Loss and accuracy over rounds."""
        from matplotlib.figure import Figure

        history = self.history()
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for axes, columns in ((left, ["train_loss", "loss"]), (right, ["accuracy"])):
            for column in columns:
                scored = history[column].dropna()
                axes.plot(scored.index, scored, marker=".", label={"loss": "held-out loss"}.get(column, column))
            axes.set_xlabel("round")
            axes.grid(alpha=0.3)
            axes.legend()
        figure.suptitle(self.name)
        return figure

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


def _widened(bits: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 as the float32 numbers that they are."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
