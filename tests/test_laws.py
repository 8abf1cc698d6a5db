"""The promises of DESIGN section 5, as far as they are kept: what must be true of every run.

Law 5, of interchangeable units, is proved over a zoo of architectures in `tests/tasks/matching`.
"""

from __future__ import annotations

import itertools
import pickle
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import Algorithm, Gradient, LocalSteps, Mean, Sgd, State, Update, open_run, reduce_all
from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.algorithms.table import ALGORITHMS, build_algorithm
from roundweave.tasks.data.examples import IGNORED, Examples
from roundweave.tasks.executors.base import EXECUTORS, open_executor
from roundweave.tasks.executors.clusters.connecting import connect, local_cluster
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.own_code.code import find_code
from tests.comparison.test_loops import FIRST as COMPARED
from tests.flows.prefect_server import command_line
from tests.patience import PATIENCE
from tests.rows import but_first
from tests.training import trained

SIX = {"partitions": 6, "model": "mlp", "rounds": 5}
DROPOUT = SIX | {"model_options": {"hidden": 16, "dropout": 0.3}, "local_steps": 2}
"""Six partitions and a network that draws randomness: what law 3 is tried on."""

SHARED_NETWORK = DROPOUT | {"ranks": 2, "model_options": {"hidden": 17, "dropout": 0.3}}
"""The same with ranks that share the network, one with a unit more than the other."""

STACKED = SIX | {"split": "dirichlet:0.3", "model_options": {"hidden": 16}, "local_epochs": 1, "stacked": 4}
"""Partitions of different sizes that are trained side by side: it is tried on these, too."""

CARRIED = DROPOUT | {"optimizer": "AdamW", "lr": 0.01, "optimizer_state": "carried"}
"""The same with optimizers that partitions carry."""

COHORT = CARRIED | {"cohort": 3}
"""The same where three of the six take part in a round."""

DECENTRALISED = CARRIED | {"topology": "two_level:3:2"}
"""The same with networks that partitions carry, and average with those of a site or of all."""

KINDS = {"dropout": DROPOUT, "stacked": STACKED, "cohort": COHORT, "decentralised": DECENTRALISED}


def vector(*numbers: float) -> dict[str, torch.Tensor]:
    return {"float64": torch.tensor(numbers, dtype=torch.float64)}


def regression(examples: int, features: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(examples, features, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(examples, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.arange(1.0, features + 1, dtype=torch.float64) + noise


def regression_objective(features: int = 5) -> Objective:
    return Objective(ModelSpec("linear", (features,), 1, "float64", 0), "mse")


def step(algorithm: Algorithm, objective: Objective, state: State, partitions: list[Examples]) -> State:
    updates = [algorithm.map(objective, state, examples, {}, 0) for examples in partitions]
    return algorithm.apply(state, reduce_all(algorithm.reduce, state, updates))


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Law 1's tolerance, in float64."""
    return bool(((left - right).abs() <= 1e-12 * right.abs().clamp(min=1.0)).all())


# The averaging example: two nodes, from (0, 0), with deltas (1, 1) and (1, -1).


def test_averaging_deltas_and_averaging_networks_are_the_same() -> None:
    start, deltas = State(vector(0.0, 0.0)), [vector(1.0, 1.0), vector(1.0, -1.0)]
    by_deltas = Sgd(lr=1.0)(start, reduce_all(Mean(), start, [Update(delta) for delta in deltas]))
    arrived = [Sgd(lr=1.0)(start, Update(delta)).params["float64"] for delta in deltas]
    assert by_deltas.params["float64"].tolist() == [-1.0, 0.0]
    assert torch.stack(arrived).mean(0).tolist() == [-1.0, 0.0]


# Law 1: how the data is partitioned does not change synchronous SGD.


@pytest.mark.parametrize("partitions", [1, 4, 7, pytest.param(100, marks=pytest.mark.thorough)])
def test_map_reduce_gradient_descent_is_batch_gradient_descent(partitions: int) -> None:
    inputs, targets = regression(100)
    objective = regression_objective()
    state = objective.initial()
    matrix = np.hstack([inputs.numpy(), np.ones((100, 1))])  # the bias comes last in the vector
    weights = state.params["float64"].numpy().copy()
    parts = [Examples(x, y) for x, y in zip(inputs.chunk(partitions), targets.chunk(partitions), strict=True)]
    algorithm = Algorithm(Gradient(), Mean(), Sgd(lr=0.1))
    for _ in range(40):
        state = step(algorithm, objective, state, parts)
        weights -= 0.1 * 2 / 100 * matrix.T @ (matrix @ weights - targets.numpy())
        assert close(state.params["float64"], torch.from_numpy(weights))


def test_the_stored_run_of_four_partitions_is_batch_gradient_descent(train, own) -> None:
    source = """
import torch
def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(1)
"""
    fields = {"data": f"{own(source)}:data", "model": "linear", "algorithm": "sync_sgd", "dtype": "float64"}
    one, four = (train(**fields, partitions=n, held_out=0, rounds=9, name=f"of-{n}") for n in (1, 4))
    for name in ("1.weight", "1.bias"):
        for number in range(10):
            there, here = (torch.from_numpy(run[name][number].values) for run in (one, four))
            assert close(here, there), f"{name} of round {number}"


@given(cuts=st.lists(st.integers(1, 59), max_size=8, unique=True), lr=st.floats(0.001, 0.3))
@settings(max_examples=50, deadline=None)
def test_unequal_partitions_are_weighted_by_their_examples(cuts: list[int], lr: float) -> None:
    inputs, targets = regression(60)
    objective = regression_objective()
    bounds = [0, *sorted(cuts), 60]
    parts = [Examples(inputs[a:b], targets[a:b]) for a, b in itertools.pairwise(bounds)]
    algorithm = Algorithm(Gradient(), Mean(), Sgd(lr))
    whole = step(algorithm, objective, objective.initial(), [Examples(inputs, targets)])
    assert close(step(algorithm, objective, objective.initial(), parts).params["float64"], whole.params["float64"])


# Law 2: averaging gradients and then stepping equals stepping and then averaging.


@given(lr=st.floats(0.001, 1.0), parts=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_one_local_step_is_synchronous_sgd(lr: float, parts: int) -> None:
    inputs, targets = regression(63)
    objective = regression_objective()
    examples = [Examples(x, y) for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True)]
    start = objective.initial()
    synchronous = step(Algorithm(Gradient(), Mean(), Sgd(lr)), objective, start, examples)
    local = Algorithm(LocalSteps(local_steps=1, batch_size=None, lr=lr), Mean(), Sgd(1.0))
    assert close(step(local, objective, start, examples).params["float64"], synchronous.params["float64"])
    gradient = Algorithm(Gradient(), Mean(), Sgd(lr))
    arrived = [step(gradient, objective, start, [part]).params["float64"] for part in examples]
    averaged = sum(len(part) * network for part, network in zip(examples, arrived, strict=True)) / 63
    assert close(averaged, synchronous.params["float64"])


# Law 3: the same bits, wherever and however often the work runs.


THOROUGH, SLOW = pytest.mark.thorough, pytest.mark.slow
ON_WORKERS = pytest.mark.parametrize("executor", [GraphExecutor, RanksExecutor])


@pytest.fixture(scope="module", params=[3, *(pytest.param(workers, marks=SLOW) for workers in (1, 4))])
def workers(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Clusters of other numbers of workers than the one that all tests share."""
    with connect(None, request.param) as client:
        yield client


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """The digests of the references of each kind: one process, no Dask."""
    root = tmp_path_factory.mktemp("references")
    kinds = KINDS | {"shared": SHARED_NETWORK}
    return {kind: digests(trained, root / kind, **fields) for kind, fields in kinds.items()}


def digests(train, *given: Any, **fields: object) -> dict[int, str]:
    """Those of the states of all rounds of a run."""
    run = train(*given, **fields)
    return {number: run.round(number).commit.state for number in range(1, run.done + 1)}


@pytest.mark.parametrize(
    ("kind", "executor", "window"),
    [
        ("dropout", GraphExecutor, 4),  # draws, and rounds that begin before the one before is committed
        ("cohort", GraphExecutor, 1),  # what partitions carry over rounds in which they take no part
        ("stacked", RanksExecutor, 4),  # partitions of a block are one network
        ("decentralised", RanksExecutor, 1),  # what neighbours on another rank carry
    ],
)
def test_two_workers_give_the_bits_of_one_process(train, references, client, kind, executor, window) -> None:
    assert digests(train, executor(client), window, **KINDS[kind]) == references[kind]


@THOROUGH
@ON_WORKERS
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_workers_and_any_window_give_the_same_bits(
    train, references, workers, window, executor, kind
) -> None:
    assert digests(train, executor(workers), window, **KINDS[kind]) == references[kind]


@pytest.mark.usefixtures("cluster")  # beside the others, so that `references` are trained once
@pytest.mark.parametrize("name", [name for name, entry in EXECUTORS.items() if not entry.distributed])
def test_every_executor_without_a_cluster_gives_the_same_bits(train, references, name) -> None:
    with open_executor(name) as executor:
        assert digests(train, executor, 2, **KINDS["dropout"]) == references["dropout"]


@ON_WORKERS
def test_ranks_that_share_a_network_give_the_same_bits_wherever_they_are(
    train, references, client, executor
) -> None:
    assert digests(train, executor(client), 3, **SHARED_NETWORK) == references["shared"]


HYBRID = """
from torch import nn
def hybrid():
    front = nn.Conv2d(1, 4, 3), nn.Dropout(0.2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*front, nn.Linear(144, 15), nn.ReLU(), nn.Dropout(0.2), nn.Linear(15, 10))
"""


@THOROUGH
def test_hybrids_give_the_same_bits_in_processes_of_their_own(train, own) -> None:
    """Four workers: two groups of two ranks."""
    fields = SHARED_NETWORK | {"model": f"{own(HYBRID)}:hybrid", "model_options": {}, "hybrid": True}
    alone = train(**fields, name="alone")
    with connect(None, 4) as client:
        assert train(RanksExecutor(client), 3, **fields, name="processes").digest == alone.digest


@pytest.mark.slow
def test_rounds_of_ranks_that_share_a_network_are_replayed_in_another_process(train, references) -> None:
    run = train(**SHARED_NETWORK, name="shared")
    replay = command_line("replay", "shared", "--all", "--root", str(run.path.parent))
    subprocess.run(replay, check=True, capture_output=True)
    assert {number: run.round(number).commit.state for number in range(1, 6)} == references["shared"]


KILLS = but_first(
    [("dropout", GraphExecutor, 1, 1), ("dropout", RanksExecutor, 2, 6)], [("decentralised", GraphExecutor, 1, 1)]
)
"""A task that is done again, and a group of ranks that is begun again after both have died."""


@pytest.mark.parametrize(("kind", "executor", "killed", "window"), KILLS)
def test_workers_killed_in_mid_round_change_no_bits(train, own, client, window, killed, executor, kind) -> None:
    """Each worker that is killed dies inside a map: the loss kills its own process, once for each file."""
    source = """
import os, signal
from pathlib import Path
from torch.nn.functional import cross_entropy
def loss(outputs, targets):
    for mark in Path(__file__).parent.glob("kill-*"):
        try:
            mark.unlink()
        except FileNotFoundError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
    return cross_entropy(outputs, targets)
"""
    folder = Path(own(source)).parent
    fields = KINDS[kind] | {"loss": f"{folder}/mine.py:loss"}
    reference = train(**fields, name="reference")

    def arm(commit: Commit) -> None:
        if commit.round == 2:
            for number in range(killed):
                (folder / f"kill-{number}").touch()

    run = train(executor(client), window, arm, **fields, name="killed")
    if window == 1 and executor is GraphExecutor:
        assert not list(folder.glob("kill-*")), "no worker was killed"
    assert run.digest == reference.digest


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kind", KINDS)
def test_an_inline_run_resumed_at_any_round_has_the_same_bits(train, references, kind) -> None:
    for rounds in (1, 2, 5):
        run = train(**KINDS[kind] | {"rounds": rounds}, name="in-steps")
        assert run.digest == references[kind][rounds]


@THOROUGH
def test_tasks_that_the_scheduler_holds_stay_bounded(train) -> None:
    """The scheduler is in this process, where its tasks can be counted."""
    fields = {"partitions": 4, "model": "logistic", "local_steps": 1, "rounds": 48}
    held: list[int] = []
    with local_cluster(2) as cluster, Client(cluster, set_as_default=False) as client, client.as_current():
        train(GraphExecutor(client), 8, lambda commit: held.append(len(cluster.scheduler.tasks)), **fields)
    assert max(held[32:]) <= max(held[:16]) + 5


@pytest.mark.parametrize(("examples", "inputs", "outputs"), [(50, 33, 64), (60, 12, 8), (7, 784, 10)])
def test_products_are_the_same_wherever_an_aligned_vector_begins(examples, inputs, outputs) -> None:
    """A weight is a view of a vector, behind five other numbers; the vector begins at a multiple of 16 bytes."""
    generator = torch.Generator().manual_seed(0)
    vector, batch = (torch.randn(n, generator=generator) for n in (5 + inputs * outputs, examples * inputs))
    wanted = batch.view(examples, inputs) @ vector[5:].view(outputs, inputs).T
    for floats in (4, 8, 12, 16):
        moved, other = (torch.cat([torch.zeros(floats), each])[floats:] for each in (vector, batch))
        assert moved.data_ptr() % 16 == other.data_ptr() % 16 == 0
        assert torch.equal(other.view(examples, inputs) @ moved[5:].view(outputs, inputs).T, wanted)


# Law 6: nothing fails silently.

PARTITIONED = """
import torch
BAD = {bad}
def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(30, 4, generator=generator)
    labels = (inputs.sum(1) > 0).long()
    if partition in BAD:
        inputs[:, 2] = float("nan")
    return inputs, labels
"""


def partitioned(own: Callable[[str], str], bad: set[int]) -> dict[str, object]:
    reference = f"{own(PARTITIONED.format(bad=bad))}:data"
    return {"data": reference, "model": "logistic", "partitions": 4, "local_epochs": 1, "held_out": 0.2}


def test_a_partition_of_nan_is_refused_by_name_and_the_others_go_on(train, own) -> None:
    run = train(**partitioned(own, {2}), rounds=3)
    for number in (1, 2, 3):
        assert list(run.round(number).refused) == [2]
        assert "1.weight has 8 non-finite of 8 numbers" in run.round(number).refused[2]
        assert run.round(number).commit.accepted == [0, 1, 3]
        assert np.isfinite(run["1.weight"][number]).all()
    assert run.history()["accepted"].tolist() == [0, 3, 3, 3]
    assert run.round(3).score.examples == 18
    assert np.isfinite(run.history()["loss"][1:]).all()
    # 24 of each partition's 30 examples are trained on, and the weights are those of the three.
    directions = [run.round(1).update(i).direction["float32"] for i in (0, 1, 3)]
    moved = run.round(0).state.params["float32"] - torch.stack(directions).mean(0)
    torch.testing.assert_close(run.round(1).state.params["float32"], moved)


def test_a_round_without_sound_updates_fails_and_keeps_the_rounds_before(train, own) -> None:
    fields = partitioned(own, {0, 1, 2, 3})
    with pytest.raises(RoundFailed, match="0 of 4 updates are sound, 1 needed; partition 0: direction of"):
        train(**fields, rounds=3, name="all-nan")
    run = open_run("all-nan")
    assert (run.done, run.status) == (0, "failed")
    assert "0 of 4 updates" in (run.failure or "")
    assert run.round(0).state.round == 0


# Law 7: every named algorithm is a value, and runs.


@pytest.mark.parametrize("name", but_first([n for n in ALGORITHMS if n not in COMPARED], sorted(ALGORITHMS)))
def test_every_algorithm_pickles_prints_and_survives_three_rounds(train, name) -> None:
    algorithm = build_algorithm(name, {})
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert repr(algorithm).startswith("Algorithm(map=")
    # Where updates arrive one by one, so many rounds are three pushes of each partition.
    rounds = 3 if algorithm.when.together else 9
    run = train(algorithm=name, partitions=3, rounds=rounds)
    assert run.history()["train_loss"].iloc[-1] < run.history()["train_loss"].iloc[1]


TOKENS = """
import torch
def tokens():
    return torch.nn.Linear(4, 3)  # at each place a logit for each of three classes
"""


def test_labels_that_are_left_out_weigh_nothing(own) -> None:
    """Partitions of 20 sequences each, of which one has most labels left out: labels count, and not sequences."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 3, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (40, 3), generator=generator)
    targets[:20, 1:] = targets[20:25] = IGNORED
    objective = Objective(ModelSpec(find_code(f"{own(TOKENS)}:tokens"), (3, 4), 3, "float64", 0), "cross_entropy")
    algorithm = Algorithm(Gradient(), Mean(), Sgd(0.5))
    halves = [Examples(inputs[half], targets[half]) for half in (slice(20), slice(20, 40))]
    one, two = (
        step(algorithm, objective, objective.initial(), parts).params["float64"]
        for parts in ([Examples(inputs, targets)], halves)
    )
    assert close(two, one)


@THOROUGH  # `tests/test_kills.py` kills at each write, without Prefect
@pytest.mark.parametrize("stops", [pytest.param((2,), marks=SLOW), (1, 3)])
def test_a_killed_flow_goes_on_to_the_same_bits(references, tmp_path, stops) -> None:
    options = {"root": tmp_path, "name": "killed", "partitions": 6, "local-steps": 2, "rounds": 5, "window": 1}
    options["model-options"] = '{"hidden": 16, "dropout": 0.3}'
    command = command_line("train", *(f"--{key}={value}" for key, value in options.items()))
    for stop in stops:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for_commit(tmp_path / "killed.zarr", stop, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert open_run(tmp_path / "killed.zarr").status == "interrupted"
    subprocess.run(command, check=True, capture_output=True)
    run = open_run(tmp_path / "killed.zarr")
    assert {n: run.round(n).commit.state for n in range(1, 6)} == references["dropout"]
    assert run.status == "complete"
    assert len({run.round(n).commit.token for n in range(1, 6)}) == 1 + len(stops), (
        "each start should have committed something"
    )


def wait_for_commit(path: Path, round: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (path / "commits" / f"{round}.json").exists():
        assert process.poll() is None, "the flow ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
