"""A small run with a file of every kind, and all that can be asked of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from roundweave.storage.errors import StoreError
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.splits import split_record
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.digests import match_digest
from roundweave.storage.values.state import Match, State, Update
from roundweave.storage.values.tensors import TensorSpec
from tests.storage.conftest import lengthened


@pytest.fixture(scope="session", params=[1, 2], ids=["alone", "shards"])
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

        def create(self, name: str = "every", rounds: int = 3, created: float = 1.0) -> RoundStore:
            config = {"algorithm": {"name": "fed_avg"}, "resplit_every": 2}
            attributes, place = {"config": config, "created": created}, self.folder / f"{name}.zarr"
            return RoundStore.create(place, self.schema, rounds, attributes, self.state(0))

        def match(self, round: int, partition: int) -> Match:
            generator = torch.Generator().manual_seed(100 * round + partition)
            permutation = {
                "fc": torch.randperm(3, generator=generator),
                "mix": torch.rand(2, 2, generator=generator),
            }
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
                    store.numbers.catch_up()
                store.numbers.seal(last)
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


def plain(value: object) -> object:
    """A value in which equal means the same bits."""
    if isinstance(value, torch.Tensor):
        return (
            str(value.dtype),
            tuple(value.shape),
            value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, State | Update | Match):
        return {name: plain(each) for name, each in vars(value).items()}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, pd.DataFrame):
        return value.to_json(double_precision=15, orient="split")
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


ASKED = ["config", "algorithm", "created", "attributes", "rounds", "partitions", "done", "committed", "lost"]
ASKED += ["digest", "chain", "stop", "failure", "damaged", "status", "scores", "tensors"]


def questions(rounds: range) -> dict[str, Callable[[StoredRun], object]]:
    """All that can be asked of a run of these rounds, by what it is."""
    asked: dict[str, Callable[[StoredRun], object]] = {
        name: (lambda run, name=name: getattr(run, name)) for name in ASKED
    }
    asked |= {"repr": repr, "history": lambda run: run.history()}
    asked["tensors over rounds"] = lambda run: {name: run[name].values for name in run.tensors}
    for number in rounds:
        asked[f"state {number}"] = lambda run, r=number: run.round(r).state
        asked[f"commit {number}"] = lambda run, r=number: run.round(r).commit
        for partition in range(2) if number else ():
            place = {"r": number, "p": partition}
            asked[f"update {number} {partition}"] = lambda run, r, p: run.round(r).update(p)
            asked[f"match {number} {partition}"] = lambda run, r, p: run.round(r).match(p)
            for name in ("update", "match"):
                question = asked[f"{name} {number} {partition}"]
                asked[f"{name} {number} {partition}"] = lambda run, q=question, at=place: q(run, **at)
        if number:
            asked[f"examples {number}"] = lambda run, r=number: run.round(r).owners
    return asked


@pytest.fixture
def answers() -> Callable[[Path, range], dict[str, object]]:
    """What a run says to each question; the error where it refuses to answer, or cannot be opened at all."""

    def ask(path: Path, rounds: range) -> dict[str, object]:
        try:
            run = StoredRun(path)
        except StoreError as error:
            return dict.fromkeys(questions(rounds), error)
        told: dict[str, object] = {}
        for what, question in questions(rounds).items():
            try:
                told[what] = plain(question(run))
            except StoreError as error:
                told[what] = error
        return told

    return ask
