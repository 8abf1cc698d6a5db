"""One committed round, as a notebook sees it: its updates, and the state after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from storage.errors import RoundMissing, ShapeMismatch, TensorMissing, printable
from storage.rounds.commits import Commit, Score
from storage.rounds.store import RoundStore
from storage.runs.markup import round_card, score_parts
from storage.values.digests import match_tensors, update_tensors
from storage.values.layout import Layout
from storage.values.state import Match, State, Update
from storage.values.tensors import TensorSpec, load_named, views

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
    def chain(self) -> str:
        """The chain of its record, which vouches for the run's attributes and all its rounds so far."""
        return self._store.log.chain(self.number)

    @property
    def layout(self) -> Layout:
        """Names, types and shapes of its tensors."""
        return self._store.schema.layout

    @property
    def score(self) -> Score | None:
        """Loss and other scores on the held-out examples, None where it was not scored."""
        return self.commit.score

    @property
    def state(self) -> State:
        """The verified state after the round, vectors (element,) by dtype; raises `StoreDamaged`."""
        return self._store.tensors.read_state(self.commit)

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The parameters after the round by name, (*shape) each."""
        return views(self.layout.params, self.state.params)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and frozen parameters under all their names, (*shape), for `load_state_dict`."""
        named = self.named.items()
        tensors = {path.partition("/")[2]: tensor for path, tensor in named if not path.startswith("memory/")}
        return tensors | {alias: tensors[name] for alias, name in self.layout.aliases}

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """All tensors of the state, (*shape), by their paths in the store, such as ``params/fc1.weight``."""
        return self.state.named(self.layout)

    @property
    def refused(self) -> dict[int, str]:
        """The partitions whose updates were not taken, and why."""
        return {p: update.refused for p, update in self.commit.updates.items() if update.refused}

    @property
    def updates(self) -> Updates:
        """The directions that the partitions sent, ``updates["fc1.weight"]`` (partition, *shape)."""
        return Updates(self)

    @property
    def permutations(self) -> Matches:
        """Which unit the reduce brought to each place, ``permutations["fc1"]`` (partition, unit)."""
        return Matches(self, "permutations")

    @property
    def similarities(self) -> Matches:
        """How alike the matched units are, ``similarities["fc1"]`` (partition, unit), at most 1."""
        return Matches(self, "similarities")

    def match(self, partition: int) -> Match:
        """How one partition's units were matched, (unit,) by group; raises `RoundMissing` where they were not."""
        return self._store.tensors.read_match(self.commit, partition)

    def update(self, partition: int) -> Update:
        """What one partition sent in this round.

        Args:
            partition: Its number, from 0.

        Returns:
            The update, of vectors (element,) by dtype; `update_tensors` gives them by name.

        Raises:
            RoundMissing: The partition took no part in the round.
            RoundPruned: Its update was let go.
            StoreDamaged: What is stored is not what was written.

        Example:
            >>> run.round(3).update(0).direction
        """
        return self._store.tensors.read_update(self.commit, partition)

    def tensor(self, path: str) -> torch.Tensor:
        """One tensor of the state, (*shape), by its path, as ``params/fc1.weight``; raises `TensorMissing`."""
        paths = self._store.schema.state(1)
        if path not in paths:
            raise TensorMissing(f"no tensor {path!r}; there are {', '.join(paths)}")
        return self._store.tensors.read_tensor(self.commit, path)

    def update_tensors(self, partition: int) -> dict[str, torch.Tensor]:
        """One partition's update by name, (*shape) each, such as ``updates/fc1.weight``; raises `RoundMissing`."""
        return update_tensors(self.update(partition), self.layout)

    def load_into(self, network: torch.nn.Module) -> torch.nn.Module:
        """Load parameters and buffers into a network with these names and shapes; else `ShapeMismatch`."""
        try:
            load_named(network, self.tensors)
        except RuntimeError as error:
            layout = self.layout
            names = ", ".join(spec.name for spec in (*layout.params, *layout.frozen, *layout.buffers))
            raise ShapeMismatch(f"round {self.number} is of another architecture; it has {names}") from error
        return network

    def __repr__(self) -> str:
        told = (*score_parts(self.score), f"{len(self.commit.accepted)} updates", self.commit.state[:12])
        return printable(f"<Round {' · '.join((str(self.number), *told))}>")

    def _repr_html_(self) -> str:
        return round_card(self.commit)


class Updates(Mapping[str, "xr.DataArray"]):
    """The directions of a round by parameter, (partition, *shape); refused ones are left out."""

    def __init__(self, round: Round) -> None:
        self._round = round

    def _specs(self) -> tuple[TensorSpec, ...]:
        return self._round.layout.params

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


class Matches(Mapping[str, "xr.DataArray"]):
    """Permutations or similarities of a round by group of units, (partition, …, unit)."""

    def __init__(self, round: Round, kind: str) -> None:
        self._round = round
        self._kind = kind

    def __getitem__(self, group: str) -> xr.DataArray:
        import xarray as xr

        if group not in list(self):
            raise TensorMissing(f"no group of units {group!r} is matched; there are {', '.join(self) or 'none'}")
        partitions = [p for p, record in self._round.commit.updates.items() if record.match is not None]
        if not partitions:
            raise RoundMissing(f"round {self._round.number} matched no units")
        tensors = [match_tensors(self._round.match(p))[f"{self._kind}/{group}"] for p in partitions]
        values = torch.stack(tensors).numpy()
        dims = ("partition", *(f"{group}.{axis}" for axis in range(values.ndim - 1)))
        return xr.DataArray(values, dims=dims, coords={"partition": partitions}, name=group)

    def __iter__(self) -> Iterator[str]:
        return (spec.name for spec in self._round._store.schema.matches)

    def __len__(self) -> int:
        return len(self._round._store.schema.matches)
