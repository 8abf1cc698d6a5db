"""The notebook's read-only view of stored runs. Looking needs neither Prefect nor Dask, and never writes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from storage.commits import Commit, Score
from storage.errors import NotARun, RoundMissing, TensorMissing
from storage.lease import read_lease
from storage.records import State, TensorSpec, Update, views
from storage.schema import ROUND_METRICS
from storage.store import RoundStore

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

SUFFIX = ".zarr"


def default_root() -> Path:
    """The folder of all runs: ``$ROUNDWEAVE_ROOT``, else ``runs`` here."""
    return Path(os.environ.get("ROUNDWEAVE_ROOT", "runs"))


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
        algorithm = self.config["algorithm"]
        parts = (
            self.name,
            self.status,
            f"{self.done}/{self.rounds} rounds{uncommitted}",
            algorithm if isinstance(algorithm, str) else algorithm["name"],
            f"{self.partitions} partitions",
            f"{parameters:,} params",
            f"{self._store.row_bytes() * (self.done + 1) / 1e6:.3g} MB",
        )
        return f"<Run {' · '.join(parts)}>"


class Round:
    """One committed round: its updates, and the state after it."""

    def __init__(self, store: RoundStore, commit: Commit) -> None:
        self._store = store
        self.commit = commit

    @property
    def number(self) -> int:
        """Its number; 0 is the initial state."""
        return self.commit.round

    @property
    def score(self) -> Score | None:
        """Loss and accuracy on the held-out examples, where it was scored."""
        return self.commit.score

    @property
    def state(self) -> State:
        """The verified state after the round; raises `StoreDamaged`."""
        return self._store.read_state(self.number)

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The parameters after the round by name."""
        return views(self._store.schema.layout.params, self.state.params)

    @property
    def refused(self) -> dict[int, str]:
        """The partitions whose updates were not taken, and why."""
        return {p: update.refused for p, update in self.commit.updates.items() if update.refused}

    @property
    def updates(self) -> Updates:
        """The directions that the partitions sent, ``updates["fc1.weight"]`` (partition, *shape)."""
        return Updates(self)

    def update(self, partition: int) -> Update:
        """One partition's update; raises `RoundMissing` where it took no part."""
        return self._store.read_update(self.number, partition)

    def load_into(self, network: torch.nn.Module) -> torch.nn.Module:
        """Load parameters and buffers into a network of the same architecture, and return it."""
        named = self.state.named(self._store.schema.layout)
        tensors = {path.partition("/")[2]: t for path, t in named.items() if not path.startswith("memory/")}
        tensors |= {alias: tensors[name] for alias, name in self._store.schema.layout.aliases}
        network.load_state_dict(tensors)
        return network

    def __repr__(self) -> str:
        score = self.score
        result = f" · loss {score.loss:.4g}" if score else ""
        result += f" · accuracy {score.accuracy:.4f}" if score and score.accuracy is not None else ""
        return f"<Round {self.number}{result} · {len(self.commit.accepted)} updates · {self.commit.state[:12]}>"


class Updates(Mapping[str, "xr.DataArray"]):
    """The directions of a round by parameter, (partition, *shape); refused ones are left out."""

    def __init__(self, round: Round) -> None:
        self._round = round

    def _specs(self) -> tuple[TensorSpec, ...]:
        return self._round._store.schema.layout.params

    def __getitem__(self, name: str) -> xr.DataArray:
        import xarray as xr

        specs = self._specs()
        spec = next((spec for spec in specs if spec.name == name), None)
        if spec is None:
            raise TensorMissing(f"no parameter {name!r}; there are {', '.join(self)}")
        accepted = self._round.commit.accepted
        if not accepted:
            raise RoundMissing(f"round {self._round.number} has no updates")
        rows = [views(specs, self._round.update(partition).direction)[name] for partition in accepted]
        values = torch.stack([row.to(torch.float32) if spec.dtype == "bfloat16" else row for row in rows]).numpy()
        dims = ("partition", *(f"{name}.{axis}" for axis in range(len(spec.shape))))
        return xr.DataArray(values, dims=dims, coords={"partition": accepted}, name=name)

    def __iter__(self) -> Iterator[str]:
        return (spec.name for spec in self._specs())

    def __len__(self) -> int:
        return len(self._specs())


def _widened(bits: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 as the float32 numbers that they are."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
