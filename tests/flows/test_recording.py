"""What a run will need is what it then stores, and what cannot fit is refused before anything is there."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from roundweave.flows import recording
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe, describe_here
from roundweave.flows.planning.plan import plan
from roundweave.flows.recording import Needs, new_run
from roundweave.storage.errors import RoundFailed, UsageError
from roundweave.storage.hierarchy.zarr_format import CHECKSUM
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.tasks.data.description import gather_here
from tests.counting import counting

FIELDS = {"algorithm": "fed_adam", "partitions": 3, "rounds": 7, "local_steps": 1}


@pytest.mark.parametrize(
    "keep", ["every:3", *(pytest.param(k, marks=pytest.mark.thorough) for k in ("all", "last:2"))]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_run_stores_is_what_was_computed(train, own, keep: str, frozen: bool) -> None:
    own_network = {name: counting(own)[name] for name in ("data", "model")} if frozen else {}
    fields = FIELDS | own_network | {"keep": keep}
    store = RoundStore(train(**fields).path)
    work = describe(plan(TrainConfig(**fields)), gather_here).work
    computed = Needs.of(work).stored(Keep.of(keep), 7)
    assert computed == store.tensors.kept_bytes(7, store.tensors.pruned())
    groups = ("params/", "buffers/", "memory/", "frozen/", "updates/")
    sizes = [size for key, size in store.place.sizes().items() if key.startswith(groups) and "/c" in key]
    assert computed == sum(sizes) - CHECKSUM * len(sizes)
    assert bool(store.schema.layout.frozen) == frozen


OWN = """
import roundweave as rw
class Halves(rw.Sgd):
    pass
class Mine(rw.Plugin):
    decides = True
    def plan(self, plan):
        return plan.wrap(apply=lambda apply: Halves(0.5))
"""


@pytest.mark.dear("a process that imports what a worker does")
def test_a_worker_that_creates_a_run_need_not_know_the_user_s_code(own) -> None:
    described = describe_here(plan(TrainConfig(partitions=2, plugins=[f"{own(OWN)}:Mine"])))
    sent = pickle.dumps(new_run(described))
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer).work.algorithm.apply)"
    told = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, check=True)
    assert told.stdout.startswith(b"Halves")


@pytest.mark.parametrize("cohort", [None, 4])
def test_a_round_of_a_server_stores_the_updates_of_its_buffer(train, cohort: int | None) -> None:
    fields = {"algorithm": "fed_buff", "buffer": 3, "partitions": 6, "rounds": 5, "local_steps": 1, "keep": "all"}
    store = RoundStore(train(**fields, cohort=cohort).path)
    work = describe(plan(TrainConfig(**fields, cohort=cohort)), gather_here).work
    assert Needs.of(work).stored(Keep.of("all"), 5) == store.tensors.kept_bytes(5, store.tensors.pruned(), 3)
    sizes = [size for key, size in store.place.sizes().items() if key.startswith("updates/") and "/c" in key]
    assert sum(sizes) == 5 * 3 * (store.schema.update_bytes + CHECKSUM)


@pytest.mark.parametrize(
    ("keep", "states", "updates"),
    [("all", 8, 7), ("states", 8, 0), ("every:3", 4, 2), ("every:7", 2, 1), ("last:2", 3, 2), ("updates:3", 4, 7)],
)
def test_rounds_that_stay_are_counted_with_the_initial_state(keep: str, states: int, updates: int) -> None:
    assert Keep.of(keep).counts(7) == (states, updates)


def test_a_run_that_its_disk_cannot_hold_is_refused_with_what_would_fit(train, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(UsageError, match=r"^7 rounds would store .* MB are free at .*; --keep last:1 stores "):
        train(**FIELDS)
    assert not (tmp_path / "runs").exists()
    train(**FIELDS, keep="last:1")


def test_only_a_run_that_may_stop_ends_before_its_disk_is_full(train, monkeypatch) -> None:
    """The disk fills up after it was looked at; to no run that has room for all its rounds is it said so."""
    left: list[int] = []
    monkeypatch.setattr(LocalPlace, "free", lambda place: left.pop() if left else 10)
    left.append(10**12)
    assert train(**FIELDS, name="whole").done == 7
    left += [10, 10**12, 10**12, 10**12]
    with pytest.raises(RoundFailed, match=r"^round 3: 0 MB are free at .*; rounds to 2 are kept"):
        train(**FIELDS, patience=100, name="full")


def test_a_network_that_memory_cannot_hold_is_refused(train, monkeypatch) -> None:
    monkeypatch.setattr(recording, "LARGE", 1)
    monkeypatch.setattr(recording, "_machine", lambda: ("here", 10**4))
    with pytest.raises(
        UsageError, match=r"^each of 1 processes on here needs .* MB of memory, and it has .* in total;"
    ):
        train(**FIELDS)


def test_partitions_that_lie_apart_are_read_by_their_maps_alone(own) -> None:
    """Nothing is read when a run is resolved: the machine of the command may not see them."""
    data = own("def data(partition, partitions): raise MemoryError")
    assert describe_here(plan(TrainConfig(data=f"{data}:data", model="linear"))) is None
