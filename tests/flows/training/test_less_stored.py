"""Runs that keep less: killed and pruned in any way, they go on to the bits of one that kept all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import RoundPruned
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.tasks.executors.graph import GraphExecutor
from tests.storage.upkeep.dying import Killed, bury

ABSENT = """
import os, pathlib, signal
from dataclasses import dataclass, replace
import torch
from roundweave import Algorithm, Gradient, Map, Mean, Sgd

@dataclass(frozen=True)
class Counting(Map):
    '''Divides its gradient by the rounds in which its partition took part: partition 0 in all, 1 till round 2.'''
    carry = ("rounds",)
    def __call__(self, objective, state, examples, carry, seed):
        round, partition = state.round + 1, int(examples.inputs[0, 0])
        deadly = pathlib.Path(__file__).with_name(f"deadly{partition}")
        if round == 7 and deadly.exists():
            deadly.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        update = Gradient()(objective, state, examples, {}, seed)
        zeros = {name: torch.zeros_like(vector) for name, vector in state.params.items()}
        rounds = {name: vector + 1 for name, vector in carry.get("rounds", zeros).items()}
        unsound = float("nan") if partition == 1 and round > 2 or partition == 2 and round % 3 else 1.0
        direction = {name: unsound * vector / rounds[name] for name, vector in update.direction.items()}
        return replace(update, direction=direction, carry={"rounds": rounds})

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(8, 3, generator=generator)
    inputs[:, 0] = partition
    return inputs, (inputs[:, 1] > 0).long()

def algorithm():
    return Algorithm(Counting(), Mean(), Sgd(0.3, 0.9))
"""
ROUNDS = 8
KEEPS = ("all", "states", "updates:2", "updates:3", "updates:9", "every:2", "every:3", "last:1", "last:4")


@pytest.fixture
def fields(own) -> dict[str, object]:
    path = own(ABSENT)
    return {"algorithm": f"{path}:algorithm", "data": f"{path}:data", "model": "logistic", "partitions": 3}


def carried(run: Run) -> list[tuple[int, int]]:
    """Of which rounds and partitions the carries are there."""
    place = LocalPlace(run.path)
    (dtype,) = (name for name in place.names("carry/rounds") if name != "zarr.json")
    rounds = map(int, place.names(f"carry/rounds/{dtype}/c"))
    return [(r, int(p)) for r in sorted(rounds) for p in place.names(f"carry/rounds/{dtype}/c/{r}")]


def all_of(*rounds: int) -> list[tuple[int, int]]:
    return [(round, partition) for round in rounds for partition in range(3)]


def test_what_is_kept_may_change_when_a_run_goes_on(train, fields) -> None:
    whole = train(**fields, rounds=ROUNDS, name="whole")
    train(**fields, rounds=3, name="run", keep="last:1")
    train(**fields, rounds=6, name="run", keep="states")
    run = train(**fields, rounds=ROUNDS, name="run")
    assert (run.kept, run.digest) == ([0, 3, 4, 5, 6, 7, 8], whole.digest)
    assert carried(run) == [(2, 1), (6, 0), (6, 2), *all_of(7, 8)]
    with pytest.raises(RoundPruned, match=r"the state of round 2 of .* was not stored"):
        RoundStore(run.path).tensors.read_state(2)
    assert resumed_config("run", None, False, {"keep": "last:3"}).keep == "last:3"


@pytest.mark.thorough
def test_a_window_whose_workers_die_begins_again_from_a_round_that_is_there(
    train, client, fields, tmp_path
) -> None:
    """Within a window nothing goes: lost work is done again from the window's first round on."""
    whole = train(**fields, rounds=ROUNDS, name="whole")
    for partition in (0, 2):
        (tmp_path / f"deadly{partition}").touch()
    run = train(GraphExecutor(client), 4, **fields, rounds=ROUNDS, name="run", keep="last:1")
    assert list(tmp_path.glob("deadly*")) == []
    assert run.digest == whole.digest
    assert (run.kept, carried(run)) == ([0, 8], [(2, 1), (6, 2), *all_of(8)])
    assert verify(run.path).sound


def killed_at(number: int, work: Callable[[], object]) -> None:
    """Do the work, and die at a write of this number, if it comes to that."""
    writes = 0

    def dying(write: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal writes
            writes += 1
            if writes > number:
                raise Killed
            return write(*arguments, **options)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("stream", "create", "delete"):
            patch.setattr(LocalPlace, name, dying(getattr(LocalPlace, name)))
        with suppress(Killed):
            work()


STEPS = st.tuples(
    st.sampled_from(["train", "train", "killed", "prune", "dying prune"]),
    st.sampled_from(KEEPS),
    st.integers(0, 3),
    st.integers(1, 150),
)


def goes_to_the_same_bits(train, fields, root: Path, steps) -> None:
    fields = fields | {"root": root, "evaluate_every": 5}
    whole = train(**fields, rounds=ROUNDS, name="whole")
    path = train(**fields, rounds=1, name="run").path
    for kind, keep, more, write in steps:
        done = Run(path).done
        rounds = min(max(done, 1) + more, ROUNDS)

        def work(kind=kind, keep=keep, rounds=rounds) -> None:
            if "prune" in kind:
                prune_run(RoundStore(path), Keep.of(keep))
            else:
                train(window=3, **fields, rounds=rounds, name="run", keep=keep)

        killed_at(write if kind in ("killed", "dying prune") else 10**9, work)
        bury(path)
        run = Run(path)
        assert run.done >= done
        assert run.round(-1).commit.state == whole.round(run.done).commit.state
        for round in run.kept:
            assert run.round(round).state.round == round
        # Of claims that were buried, and of a writer cut short while it made the run longer, nothing else tells.
        assert not [f for f in verify(path).findings if "leases" not in f.path and "zarr.json" not in f.path]
    assert train(**fields, rounds=ROUNDS, name="run").digest == whole.digest
    assert open_run(path).replay("all", trust=True).identical


@pytest.mark.thorough
def test_a_way_to_the_last_round_leads_to_the_same_bits(train, fields, tmp_path) -> None:
    steps = [("killed", "all", 1, 2), ("dying prune", "every:2", 0, 9), ("prune", "all", 0, 1)]
    goes_to_the_same_bits(train, fields, tmp_path / "any", steps)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=5))
def test_any_way_to_the_last_round_leads_to_the_same_bits(train, fields, tmp_path_factory, steps) -> None:
    goes_to_the_same_bits(train, fields, tmp_path_factory.mktemp("any"), steps)
