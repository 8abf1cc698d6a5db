"""One committed round, as a notebook sees it: its updates, and the state after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from storage.commits import Commit, Score
from storage.errors import RoundMissing, ShapeMismatch, TensorMissing
from storage.records import State, TensorSpec, Update, views
from storage.store import RoundStore

if TYPE_CHECKING:
    import xarray as xr


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
        """Load parameters and buffers into a network of this architecture; else `ShapeMismatch`."""
        named = self.state.named(self._store.schema.layout)
        tensors = {path.partition("/")[2]: t for path, t in named.items() if not path.startswith("memory/")}
        tensors |= {alias: tensors[name] for alias, name in self._store.schema.layout.aliases}
        try:
            network.load_state_dict(tensors)
        except RuntimeError as error:
            layout = self._store.schema.layout
            names = ", ".join(spec.name for spec in (*layout.params, *layout.frozen, *layout.buffers))
            raise ShapeMismatch(f"round {self.number} is of another architecture; it has {names}") from error
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
