"""A small run with every kind of tensor: several dtypes, a scalar, buffers, frozen and tied ones, all slots."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from roundweave.flows.stored import Run
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.commits import Arrival, Commit, InFlight, Score, ServerRecord, UpdateRecord
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.splits import split_record
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.values.digests import match_digest, update_digest
from roundweave.storage.values.state import Layout, Match, State, Update
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


def thorough(*values: object) -> list[object]:
    """Parameters of the second suite."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


@dataclass(frozen=True)
class Tiny:
    """Makes the run, and commits rounds of random numbers to it."""

    folder: Path

    schema = Schema(LAYOUT, partitions=2, memory=("velocity",), carry=("variate",), extras=("control",))
    config: ClassVar[dict[str, object]] = {"algorithm": {"name": "fed_avg"}}

    def params(self, slots: Iterable[str], seed: int) -> dict[str, Vectors]:
        """What slots have of the parameters."""
        return {slot: drawn(self.schema.layout.params, seed) for slot in slots}

    def state(self, round: int) -> State:
        layout, seed = self.schema.layout, 10 * round
        params, buffers = drawn(layout.params, seed), drawn(layout.buffers, seed + 1)
        return State(params, buffers, drawn(layout.frozen, 7), self.params(self.schema.memory, seed + 2), round)

    def update(self, round: int, partition: int) -> Update:
        layout, seed = self.schema.layout, 1000 * round + 10 * partition
        return Update(
            direction=drawn(layout.params, seed),
            buffers=drawn(layout.buffers, seed + 1),
            extras=self.params(self.schema.extras, seed + 2),
            weight=10 + partition,
            metrics={"train_loss": float(round + partition)},
            carry=self.params(self.schema.carry, seed + 3),
        )

    def create(
        self, name: str = "tiny", rounds: int = 3, created: float = 1.0, asks: str = "", names=(), **config: object
    ) -> RoundStore:
        """A run without rounds, whose partitions have these `names`, and whose configuration has these fields."""
        attributes = {"config": self.config | config, "created": created, "asks": asks}
        attributes |= {"data": {"partition_names": names}} if names else {}
        return RoundStore.create(self.folder / f"{name}.zarr", self.schema, rounds, attributes, self.state(0))

    def write(self, store: RoundStore, round: int, refused=(), metrics=None, **fields: object) -> Commit:
        """Write a round's tensors; gives the commit that would make it exist.

        Given `metrics`, by partition, only those partitions take part, and report these.
        """
        store.tensors.write_state(self.state(round))
        records, updates = {}, {partition: self.update(round, partition) for partition in range(2)}
        store.tensors.write_updates(round, updates)
        reported = {p: update.metrics for p, update in updates.items()} if metrics is None else metrics
        for partition, numbers in reported.items():
            update, reason = updates[partition], "not sound" if partition in refused else None
            told = update.weight, reason, numbers, 0.5 + partition
            records[partition] = UpdateRecord(update_digest(update), *told)
        score = Score(1.0 / round, {"accuracy": 0.25 * round}, 8)
        fields = {"updates": records, "score": score, "seconds": 2.0} | fields
        return replace(store.describe(self.state(round), "writer", 0), **fields)

    def serve(self, store: RoundStore, staleness: list[dict[int, int]], refused: set[tuple[int, int]]) -> None:
        """Commit rounds of a server: how stale each partition's update is, those of (round, partition) refused."""
        for round, stale in enumerate(staleness, 1):
            commit = self.write(store, round, tuple(p for number, p in refused if number == round))
            updates = {}
            for p, each in stale.items():
                came = {"arrival": Arrival(push=round, version=round - 1, staleness=each), "worker": f"worker {p}"}
                updates[p] = replace(commit.updates[p], metrics={"staleness": float(each)}, **came)
            in_flight = {p: InFlight(round + 1, round, round) for p in range(2)}
            store.commit(replace(commit, updates=updates, server=ServerRecord(in_flight, round)))

    def train(self, store: RoundStore, rounds: int) -> RoundStore:
        for round in range(1, rounds + 1):
            store.commit(self.write(store, round))
        store.show()
        return store

    def run(self, *rounds: dict[str, object], **how: object) -> Run:
        """A run of which each round has these fields, see `write`; see `create` of the others."""
        store = self.create(**how)
        for round, fields in enumerate(rounds, 1):
            store.commit(self.write(store, round, **fields))
        return Run(store.path)


ATTRIBUTES = {"config": Tiny.config, "created": 1.0}
"""Of a run of other tensors."""


def contents(where: LocalPlace | Path) -> dict[str, bytes]:
    """All that is in a place, by key."""
    place = place_of(where)
    return {key: bytes(place.read(key) or b"") for key in place.sizes()}


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


def plain(value: object) -> object:
    """A value in which equal means the same bits."""
    if isinstance(value, torch.Tensor):
        content = value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), content
    if isinstance(value, State | Update | Match):
        return type(value), plain(dict(vars(value)))
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, pd.DataFrame):
        return value.to_json(double_precision=15, orient="split")
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return value


@pytest.fixture(scope="session")
def same() -> Callable[[object, object], bool]:
    """Whether two nested mappings of tensors have the same names, types, shapes and bits."""
    return lambda left, right: plain(left) == plain(right)


@pytest.fixture(scope="session", params=[1, pytest.param(2, marks=pytest.mark.thorough)], ids=["alone", "shards"])
def small_in(request: pytest.FixtureRequest, tiny_in: type) -> type:
    """The maker of such a run in a folder of the test's own: one parameter and a carry."""

    class Small(tiny_in):  # type: ignore[misc, valid-type]
        schema = Schema(Layout((TensorSpec("w", "float32", (3,)),)), 2, carry=("variate",), shard=request.param)

    return Small


@pytest.fixture
def small(small_in: type, tmp_path: Path) -> object:
    """One under the runs of the test."""
    return small_in(tmp_path / "runs")


@pytest.fixture(scope="session", params=[1, pytest.param(2, marks=pytest.mark.thorough)], ids=["alone", "shards"])
def every_in(request: pytest.FixtureRequest, tiny_in: type, tmp_path_factory: pytest.TempPathFactory) -> type:
    """Makes runs with every kind of file: also matches of both kinds, splits, claims and a record quarantined.

    Their two partitions have a file each, or one together.
    """

    @dataclass(frozen=True)
    class Every(tiny_in):  # type: ignore[misc, valid-type]
        schema = replace(
            tiny_in.schema,
            matches=(TensorSpec("fc", "int64", (3,)), TensorSpec("mix", "float32", (2, 2))),
            shard=request.param,
        )

        config = tiny_in.config | {"resplit_every": 2}

        def match(self, round: int, partition: int) -> Match:
            generator = torch.Generator().manual_seed(100 * round + partition)
            mixed = torch.randperm(3, generator=generator), torch.rand(2, 2, generator=generator)
            permutation = dict(zip(("fc", "mix"), mixed, strict=True))
            similarity = {name: torch.rand(len(order), generator=generator) for name, order in permutation.items()}
            return Match(permutation, similarity)

        def owners(self, number: int) -> np.ndarray:
            return np.random.default_rng(number).integers(-1, 2, 20).astype(np.int32)

        def write(self, store: RoundStore, round: int, refused: tuple[int, ...] = (), **fields: object) -> Commit:
            commit = super().write(store, round, refused, **fields)
            matches = {partition: self.match(round, partition) for partition in commit.accepted}
            store.tensors.write_matches(round, matches)
            digests = {p: replace(commit.updates[p], match=match_digest(match)) for p, match in matches.items()}
            number = (round - 1) // 2
            store.splits.write(number, self.owners)
            split = split_record(number, self.owners(number))
            return replace(commit, updates={**commit.updates, **digests}, split=split)

        def rounds(self, store: RoundStore, first: int, last: int, rounds: int, **fields: object) -> RoundStore:
            """Another writer that goes on with the run."""
            with hold_lease(store.place, f"writer{first}", rounds) as lease:
                store = lengthened(store, rounds)
                for round in range(first, last + 1):
                    store.commit(self.write(store, round, epoch=lease.epoch, token=lease.token, **fields))
                    store.show()
            return store

        def whole(self) -> RoundStore:
            """A copy of the run of 4 rounds."""
            return RoundStore(Path(shutil.copytree(made, self.folder / "every.zarr")))

    maker = Every(tmp_path_factory.mktemp("every"))
    made = maker.rounds(maker.create(rounds=4), 1, 4, 4, carry_from={0: 1}).path
    record = made / "commits/4.json"
    record.write_text(record.read_text()[:-1])
    # The last round was damaged, and is done again by another writer.
    maker.rounds(RoundStore(made), 4, 4, 4, carry_from={0: 1})
    return Every


@pytest.fixture
def every(every_in: type, tmp_path: Path) -> object:
    """Makes them under the runs of the test."""
    return every_in(tmp_path / "runs")
