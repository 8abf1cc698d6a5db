"""A small run with every kind of tensor: several dtypes, a scalar, buffers, frozen and tied ones, all slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import Arrival, Commit, InFlight, Score, ServerRecord, UpdateRecord
from roundweave.storage.rounds.recovery import recover
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec, Vectors, vector_sizes

LAYOUT = Layout(
    params=(
        TensorSpec("fc.weight", "float32", (3, 2)),
        TensorSpec("scale", "float32", ()),
        TensorSpec("coarse", "bfloat16", (4,)),
    ),
    buffers=(
        TensorSpec("norm.mean", "float32", (2,)),
        TensorSpec("norm.count", "int64", ()),
        TensorSpec("mask", "bool", (3,)),
    ),
    frozen=(TensorSpec("table", "float32", (2, 2)), TensorSpec("shift", "float64", ())),
    aliases=(("head.weight", "fc.weight"),),
)


def drawn(specs: tuple[TensorSpec, ...], seed: int) -> Vectors:
    generator = torch.Generator().manual_seed(seed)
    return {
        dtype: (torch.randn(size, generator=generator) * 8).to(getattr(torch, dtype))
        for dtype, size in vector_sizes(specs).items()
    }


@dataclass(frozen=True)
class Tiny:
    """Makes the run, and commits rounds of random numbers to it."""

    folder: Path

    schema = Schema(LAYOUT, partitions=2, memory=("velocity",), carry=("variate",), extras=("control",))

    def state(self, round: int) -> State:
        return State(
            params=drawn(LAYOUT.params, 10 * round),
            buffers=drawn(LAYOUT.buffers, 10 * round + 1),
            frozen=drawn(LAYOUT.frozen, 7),
            memory={"velocity": drawn(LAYOUT.params, 10 * round + 2)},
            round=round,
        )

    def update(self, round: int, partition: int) -> Update:
        seed = 1000 * round + 10 * partition
        return Update(
            direction=drawn(LAYOUT.params, seed),
            buffers=drawn(LAYOUT.buffers, seed + 1),
            extras={"control": drawn(LAYOUT.params, seed + 2)},
            weight=10 + partition,
            metrics={"train_loss": float(round + partition)},
            carry={"variate": drawn(LAYOUT.params, seed + 3)},
        )

    def create(self, name: str = "tiny", rounds: int = 3, created: float = 1.0) -> RoundStore:
        attributes = {"config": {"algorithm": {"name": "fed_avg"}}, "created": created}
        return RoundStore.create(self.folder / f"{name}.zarr", self.schema, rounds, attributes, self.state(0))

    def write(self, store: RoundStore, round: int, refused: tuple[int, ...] = (), **fields: object) -> Commit:
        """Write a round's tensors; gives the commit that would make it exist."""
        store.tensors.write_state(self.state(round))
        records, updates = {}, {partition: self.update(round, partition) for partition in range(2)}
        store.tensors.write_updates(round, updates)
        for partition, update in updates.items():
            reason = "not sound" if partition in refused else None
            records[partition] = UpdateRecord(
                update_digest(update), update.weight, reason, update.metrics, seconds=0.5 + partition
            )
        commit = store.describe(self.state(round), "writer", 0)
        fields = {
            "updates": records,
            "score": Score(1.0 / round, {"accuracy": 0.25 * round}, 8),
            "seconds": 2.0,
        } | fields
        return replace(commit, **fields)

    def serve(self, store: RoundStore, staleness: list[dict[int, int]], refused: set[tuple[int, int]]) -> None:
        """Commit rounds of a server: how stale each partition's update is, those of (round, partition) refused."""
        for round, stale in enumerate(staleness, 1):
            commit = self.write(store, round, tuple(p for number, p in refused if number == round))
            updates = {
                p: replace(
                    commit.updates[p],
                    arrival=Arrival(push=round, version=round - 1, staleness=each),
                    metrics={"staleness": float(each)},
                    worker=f"worker {p}",
                )
                for p, each in stale.items()
            }
            in_flight = {p: InFlight(round + 1, round, round) for p in range(2)}
            store.commit(replace(commit, updates=updates, server=ServerRecord(in_flight, round)))

    def train(self, store: RoundStore, rounds: int) -> RoundStore:
        for round in range(1, rounds + 1):
            store.commit(self.write(store, round))
        store.numbers.catch_up()
        return store


def lengthened(store: RoundStore, rounds: int) -> RoundStore:
    """The run of a store as a writer takes it up that is to make it so long."""
    store = RoundStore(store.place, rounds=rounds)
    recover(store)
    return store


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return Tiny(tmp_path / "runs")


@pytest.fixture(scope="session")
def tiny_in() -> Callable[[Path], Tiny]:
    """The tiny run's maker in a folder of the test's own."""
    return Tiny


@pytest.fixture(scope="session")
def same() -> Callable[[object, object], bool]:
    """Whether two nested mappings of tensors have the same names, types, shapes and bits."""

    def equal(left: object, right: object) -> bool:
        if isinstance(left, torch.Tensor):
            assert isinstance(right, torch.Tensor)
            alike = (left.dtype, left.shape) == (right.dtype, right.shape)
            return alike and torch.equal(
                left.reshape(-1).contiguous().view(torch.uint8), right.reshape(-1).contiguous().view(torch.uint8)
            )
        if isinstance(left, dict):
            assert isinstance(right, dict)
            return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
        if isinstance(left, State | Update):
            return type(left) is type(right) and equal(dict(left.__dict__), dict(right.__dict__))
        return left == right

    return equal
