"""A model of two writers of one run, interleaved at each of their steps: no committed round is ever lost.

A step is a system call on files, or a request to a bucket. Each writer believes at once that the other one is
dead, takes the run over, recovers it, and commits rounds with bits of its own. A round counts as committed once
its writer was told so.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import obstore
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from roundweave.storage.errors import WriterFenced
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.places import objects
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.places.objects import ObjectPlace
from roundweave.storage.rounds import packs
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.rounds.lease import fenced, hold_lease
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec
from tests.patience import PATIENCE

ROUNDS = 3
SCHEMA = Schema(Layout((TensorSpec("w", "float32", (2,)),)), partitions=1)
FILES = ("open", "mkdir", "link", "replace", "rename", "unlink", "rmdir", "scandir")
REQUESTS = ("put", "get", "head", "list", "list_with_delimiter", "delete")


def state(round: int, bits: float) -> State:
    return State({"float32": torch.tensor([float(round), float(bits)])}, {}, {}, {}, round)


@dataclass
class Turns:
    """Lets one writer run at a time: `plan` says for how many steps, and then it is the other one's turn.

    When the plan is over, the writer whose turn it is runs to its end, and then the other one.
    """

    plan: list[int]
    steps: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    turn: int = 0
    ended: set[int] = field(default_factory=set)
    condition: threading.Condition = field(default_factory=threading.Condition)
    me: threading.local = field(default_factory=threading.local)

    def step(self) -> None:
        number = getattr(self.me, "number", None)
        if number is None:
            return
        with self.condition:
            if self.plan and self.plan[0] == 0 and 1 - number not in self.ended:
                self.plan.pop(0)
                self._pass_on(1 - number)
            self._wait(number)
            self.steps[number] += 1
            if self.plan:
                self.plan[0] = max(0, self.plan[0] - 1)

    def run(self, number: int, work: Callable[[], None]) -> None:
        self.me.number = number
        with self.condition:
            self._wait(number)
        try:
            work()
        finally:
            with self.condition:
                self.ended.add(number)
                self._pass_on(1 - number)

    def _pass_on(self, number: int) -> None:
        self.turn = number
        self.condition.notify_all()

    def _wait(self, number: int) -> None:
        assert self.condition.wait_for(lambda: self.turn == number or 1 - number in self.ended, timeout=PATIENCE)


def write(where: str, number: int, keep: Keep, committed: dict[int, set[str]]) -> None:
    """Go on with a run as a writer does, and note the state of each round that it was told is committed."""
    place = place_of(where)
    with suppress(WriterFenced), hold_lease(place, f"writer{number}", ROUNDS) as lease:
        store = RoundStore(fenced(place, lease.epoch), rounds=ROUNDS)
        done, _ = recover(store)
        for round in range(done + 1, ROUNDS + 1):
            commit = one_round(store, round, lease.epoch, number)
            committed.setdefault(round, set()).add(commit.state)
            store.show()
            prune(store, keep, commit)
            store.log.pack(commit.round)


def one_round(store: RoundStore, round: int, epoch: int, number: int) -> Any:
    after, update = state(round, number), Update({"float32": torch.tensor([number, round + 0.5])}, weight=1)
    store.tensors.write_updates(round, {0: update})
    store.tensors.write_state(after)
    record = UpdateRecord(update_digest(update), 1)
    return store.commit(replace(store.describe(after, f"writer{number}", epoch), updates={0: record}))


def place_of(where: str) -> LocalPlace | ObjectPlace:
    return ObjectPlace(where) if where.startswith("memory:") else LocalPlace(Path(where))


@contextmanager
def interleaved(plan: Sequence[int]) -> Iterator[Turns]:
    """A context in which two writers take turns at every system call and request."""
    turns = Turns(list(plan))

    def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            turns.step()
            return function(*arguments, **options)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for module, names in ((os, FILES), (obstore, REQUESTS)):
            for name in names:
                patch.setattr(module, name, stepping(getattr(module, name)))
        for kind in (LocalPlace, ObjectPlace):
            patch.setattr(kind, "age", lambda self, key: inf)
        patch.setattr(ObjectPlace, "at_once", 1)
        yield turns


def together(where: str, plan: Sequence[int], keep: Keep) -> Turns:
    """Run two writers by a plan, and check that what each was told is committed is what the run has."""
    committed: dict[int, set[str]] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            turns.run(number, lambda: write(where, number, keep, committed))
        except BaseException as error:  # noqa: BLE001 - the test fails for it, in its own thread
            errors.append(error)

    with interleaved(plan) as turns:
        writers = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert not errors, (plan, errors)
    store = RoundStore(place_of(where))
    assert {round: {store.log.read(round).state} for round in committed} == committed, plan
    assert store.log.rounds() == list(range(ROUNDS + 1)), plan
    assert [str(each) for each in verify(store.place).findings] == [], plan
    return turns


numbers = itertools.count()


@contextmanager
def run_at(kind: str, folder: Path, damaged: bool = False, packed: bool = False) -> Iterator[str]:
    """A run with a first round on a disk or in a bucket; where `damaged`, the state of that round is lost.

    Its records are in a pack already where `packed`.
    """
    name = f"run{next(numbers)}"
    where = str(folder / name) if kind == "disk" else f"memory://{name}/run"
    objects._memories[name] = MemoryStore()
    RoundStore.create(place_of(where), SCHEMA, ROUNDS, {"config": {}}, state(0, 0.0))
    store = RoundStore(place_of(where))
    one_round(store, 1, 0, number=5)
    store.show()
    if damaged:
        store.place.write("params/w/c/1/0", b"")
    if packed:
        store.log.pack(2)
    yield where
    del objects._memories[name]


KEEPS = (Keep.of("all"), Keep.of("last:1"))
SLOW = (pytest.mark.slow, pytest.mark.timeout(3600))


@pytest.fixture(autouse=True)
def _packs_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer packs the records of rounds 0 and 1 once round 2 is committed."""
    monkeypatch.setattr(packs, "ROUNDS", 2)


KINDS = (("bucket", False, False), ("disk", False, False), ("disk", True, False), ("disk", True, True))
FEW = [
    pytest.param("bucket", False, False, 9, KEEPS[1], id="a bucket, pruned"),
    pytest.param("disk", False, False, 31, KEEPS[0], id="a disk, all kept", marks=pytest.mark.thorough),
    pytest.param("disk", True, True, 53, KEEPS[1], id="a disk, with a damaged state whose record is in a pack"),
]
EACH = [pytest.param(*kind, 1, keep, marks=SLOW) for kind in KINDS for keep in KEEPS]


@pytest.mark.parametrize(("kind", "damaged", "packed", "stride", "keep"), FEW + EACH)
def test_a_writer_suspended_at_any_step_loses_nothing(tmp_path, kind, damaged, packed, stride, keep) -> None:
    """Suspended at each step in turn, while the other one does all of its work."""
    with run_at(kind, tmp_path, damaged, packed) as where:
        alone = together(where, (), keep).steps[0]
    for step in range(0, alone, stride):
        with run_at(kind, tmp_path, damaged, packed) as where:
            together(where, [step], keep)


@pytest.mark.parametrize("kind", ["disk", "bucket"])
@pytest.mark.parametrize("examples", [10, pytest.param(1000, marks=SLOW)])
def test_two_writers_that_are_suspended_in_turn_lose_nothing(tmp_path_factory, kind: str, examples: int) -> None:
    """Suspended up to six times at steps that are drawn."""
    folder = tmp_path_factory.mktemp("drawn")

    @settings(max_examples=examples)
    @given(
        st.lists(st.integers(0, 300), min_size=2, max_size=6),
        st.sampled_from(KEEPS),
        st.just(False) if kind == "bucket" else st.booleans(),
    )
    def drawn(plan: list[int], keep: Keep, damaged: bool) -> None:
        with run_at(kind, folder, damaged) as where:
            together(where, plan, keep)

    drawn()
