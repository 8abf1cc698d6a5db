"""What is written of a run and deleted again: no updates, and of states only what going on needed meanwhile.

Tensors are deleted by the process that trains, so what it deletes and what is there at the end is all that was
ever written, by whichever process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from distributed import Client

from roundweave import Run, TrainConfig, open_run
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.errors import RoundPruned
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.storage.values.digests import update_digest
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.counting import counting

FIELDS = {"model": "mlp", "model_options": {"hidden": 6}, "partitions": 3, "rounds": 8, "evaluate_every": 100}
SYNCHRONOUS = FIELDS | {"local_steps": 1, "batch_size": 8}
ASYNCHRONOUS = FIELDS | {"algorithm": "async_sgd", "batch_size": 8}

WRITTEN = {
    "all": (set(range(9)), set(range(1, 9))),
    "states": (set(range(9)), set()),
    "every:3": ({0, 3, 6, 8}, {3, 6}),
    "updates:3": ({0, 3, 6, 8}, set(range(1, 9))),
    "last:2": ({0, 7, 8}, {7, 8}),
    "recompute:3": ({0, 3, 6, 8}, set()),
}
"""By policy, the rounds whose states and whose updates are ever written, of 8 rounds."""

WRITTEN_BY_SERVER = {"every:3": (set(range(9)), {3, 6}), "last:2": (set(range(9)), set(range(1, 9)))}
"""The same of a parameter server: its pushes begin from states of before, which are needed to go on."""

ENDS = {2, 4, 6, 8}
"""The last rounds of windows of 2: a task of the next window, in any process, begins from their states."""


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the files that are deleted."""
    gone: list[str] = []
    delete = LocalPlace.delete

    def deleting(place: LocalPlace, prefix: str) -> None:
        path = Path(place.path, prefix)
        files = path.rglob("*") if path.is_dir() else [path]
        gone.extend(str(file.relative_to(place.path)) for file in files if file.is_file())
        delete(place, prefix)

    monkeypatch.setattr(LocalPlace, "delete", deleting)
    return gone


def rounds_of(group: str, keys: list[str]) -> set[int]:
    """The rounds of the chunks among these keys that lie in a group."""
    return {int(key.partition("/c/")[2].split("/")[0]) for key in keys if key.startswith(group) and "/c/" in key}


def written(group: str, run: Run, deleted: list[str]) -> set[int]:
    """The rounds of which anything was ever written in a group."""
    return rounds_of(group, [*LocalPlace(run.path).sizes(), *deleted])


EXECUTORS: dict[str, tuple[Callable[[Client], Executor], dict[str, object]]] = {
    "inline": (lambda client: InlineExecutor(), SYNCHRONOUS),
    "graph": (GraphExecutor, SYNCHRONOUS),
    "ranks": (RanksExecutor, SYNCHRONOUS),
    "shared network": (RanksExecutor, SYNCHRONOUS | {"ranks": 2}),
    "server": (lambda client: InlineExecutor(), ASYNCHRONOUS),
    "server on Dask": (GraphExecutor, ASYNCHRONOUS),
}


MORE = pytest.mark.thorough
# With the policy that each could get wrong most easily: states between, or only at the end.
FIRST = {("inline", "every:3"), ("graph", "every:3"), ("server", "last:2")}
EACH = [
    pytest.param(name, keep, marks=[MORE] * ((name, keep) not in FIRST)) for name in EXECUTORS for keep in WRITTEN
]


@pytest.mark.parametrize(("name", "keep"), EACH)
def test_no_update_is_written_that_is_not_kept(train, client, deleted, name: str, keep: str) -> None:
    """On a cluster the next window begins from a stored state; a late push cannot be mapped again."""
    executor, fields = EXECUTORS[name]
    run = train(executor(client), 2, **fields, keep=keep, name="run")
    states, updates = WRITTEN_BY_SERVER.get(keep, WRITTEN[keep]) if "server" in name else WRITTEN[keep]
    of_windows = ENDS if name in ("graph", "server on Dask") else set()
    late = {r for r in range(9) if run.round(r).commit.late}
    assert written("updates", run, deleted) == updates | late
    assert written("params", run, deleted) == states | of_windows
    if "server" not in name or keep == "recompute:3":
        assert rounds_of("updates", deleted) == set()
        assert rounds_of("params", deleted) <= of_windows - states
    if "server" not in name:  # else what is in flight needs more of them
        assert len(run.kept) == Keep.of(keep).counts(8)[0]
    assert (verify(run.path).findings, verify(run.path).notes) == ((), ())
    if "server on" not in name:
        assert run.digest == train(window=8, **fields, keep="all", name="whole").digest


@pytest.mark.parametrize("make", [GraphExecutor, pytest.param(RanksExecutor, marks=MORE)])
def test_of_updates_that_are_not_kept_those_are_written_that_carry(train, deleted, client, own, make) -> None:
    """By hand: partition 1 is refused in rounds 2 and 3, and goes on with what it carried away from round 1."""
    fields = counting(own) | {"partitions": 3, "rounds": 4}
    run = train(make(client), 4, **fields, keep="states", name="run")
    assert run.digest == train(**fields, name="whole").digest
    keys = [key.split("/") for key in LocalPlace(run.path).sizes() if key.startswith("updates/float32/c/")]
    keys += [key.split("/") for key in deleted if key.startswith("updates/float32/c/")]
    sent = {(round, partition) for round in range(1, 5) for partition in range(3)} - {(2, 1), (3, 1)}
    assert {(int(key[3]), int(key[4])) for key in keys} == sent
    assert run.absent.carried == {(4, partition) for partition in range(3)}
    assert verify(run.path).sound


@pytest.fixture
def cut(tmp_path: Path) -> Callable[..., Path]:
    """Trains five of eight rounds of a window, and leaves them as they are when the process is killed there."""

    def train(keep: str, **fields: object) -> Path:
        executor = InlineExecutor()
        config = TrainConfig(root=tmp_path / "runs", name="cut", keep=keep, **fields)
        with prepare(plan(config), executor) as ready:
            made = executor.run(ready.job, 1, 8)
            for _ in range(5):
                next(made)
        return tmp_path / "runs/cut.zarr"

    return train


ABSENT = r"the updates of round 4 of .* were not stored, as the run does not keep them; there are those of "


@pytest.mark.parametrize(
    ("fields", "keep", "others"),
    [
        pytest.param(SYNCHRONOUS, "every:3", "rounds 3", id="between"),
        pytest.param(ASYNCHRONOUS, "states", "no round", id="server", marks=MORE),
        pytest.param(SYNCHRONOUS, "states", "no round", id="none", marks=MORE),
        pytest.param(ASYNCHRONOUS, "every:3", "rounds 3", id="between of a server", marks=MORE),
    ],
)
def test_a_run_that_is_killed_says_what_was_not_stored_and_goes_on(train, cut, fields, keep, others) -> None:
    whole, path = train(window=8, **fields, keep="all", name="whole"), cut(keep, **fields)
    run = open_run(path)
    assert (verify(path).findings, verify(path).notes) == ((), ())
    few = keep == "every:3" and fields is SYNCHRONOUS
    assert (run.kept, run.pruned.updates) == ([0, 3] if few else [0, 1, 2, 3, 4, 5], set())
    assert run.absent.updates == ({1, 2, 3, 4, 5} if keep == "states" else {1, 2, 4, 5})
    accepted = run.round(4).commit.accepted[0]
    with pytest.raises(RoundPruned, match=f"{ABSENT}{others}$"):
        RoundStore(path).tensors.read_update(4, accepted)
    assert update_digest(run.round(4).update(accepted)) == whole.round(4).commit.updates[accepted].digest
    assert run.recombine(4).rounds[0].identical
    if fields is SYNCHRONOUS:
        assert run.divergence().index.tolist() == ([0, 3] if keep == "every:3" else [0])
        assert run.ds["fc1.weight"].notnull().all(axis=(1, 2)).values[run.kept].all()
        assert run.tree["updates/fc1.weight"][:, 0].isnull().values[4].all()
    assert run.replay("all").identical
    again = train(window=2, **fields, keep=keep, name="cut")
    assert again.digest == whole.digest
    assert [again.round(r).commit.state for r in again.committed] == [
        whole.round(r).commit.state for r in range(9)
    ]
    assert (verify(path).findings, verify(path).notes) == ((), ())


@pytest.mark.parametrize("fields", [SYNCHRONOUS, pytest.param(ASYNCHRONOUS, marks=MORE)], ids=["", "server"])
@pytest.mark.parametrize(
    "later", ["last:1", *(pytest.param(k, marks=MORE) for k in ("updates:4", "every:2", "all"))]
)
def test_states_stay_that_cannot_be_made_again_as_the_updates_were_not_written(train, cut, fields, later) -> None:
    whole, path = train(window=8, **fields, keep="all", name="whole"), cut("states", **fields)
    prune_run(RoundStore(path), Keep.of(later))
    assert verify(path).sound
    if fields is SYNCHRONOUS:  # else what is in flight needs more of them
        assert Run(path).kept == {"last:1": [0, 5], "every:2": [0, 2, 4, 5]}.get(later, [0, 1, 2, 3, 4, 5])
    run = train(window=3, **fields, keep=later, name="cut")
    assert run.digest == whole.digest
    assert verify(path).sound
    if later in ("updates:4", "all"):
        assert open_run(path).replay("all").identical


@pytest.mark.parametrize("executor", [lambda client: InlineExecutor(), pytest.param(GraphExecutor, marks=MORE)])
def test_how_units_were_matched_is_written_with_the_updates_alone(train, client, executor) -> None:
    fields = SYNCHRONOUS | {"algorithm": "matched", "match": "weights", "rounds": 4}
    run = train(executor(client), 4, **fields, keep="every:2", name="run")
    assert run.digest == train(**fields, name="whole").digest
    assert written("permutations", run, []) == written("similarities", run, []) == {2, 4}
    assert verify(run.path).sound
    assert run.round(2).match(0).permutation.keys() == {"fc1"}
    with pytest.raises(RoundPruned, match=r"the updates of round 3 of .* were not stored"):
        RoundStore(run.path).tensors.read_match(3, 0)
