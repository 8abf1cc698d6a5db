"""Runs of networks that partitions average with their neighbours': D-PSGD against a plain loop."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import roundweave as rw
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.flows.plugins.topology.graphs import find_topology
from roundweave.storage.errors import ExperimentDiffers
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.executors.graph import GraphExecutor

DATA = """
import torch
def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(4 + partition, 2, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.tensor([1.0, partition], dtype=torch.float64) + partition
"""
LINEAR = {"model": "linear", "dtype": "float64", "batch_size": None, "lr": 0.05, "held_out": 0}
MORE = pytest.mark.thorough
MOONS = {"model": "logistic", "partitions": 4, "local_steps": 3, "split": "shards:2", "topology": "ring"}


@pytest.fixture
def linear(own) -> dict[str, object]:
    """Least squares of partitions that have 4, 5, … examples each, and targets of their own."""
    return LINEAR | {"data": f"{own(DATA)}:data"}


def networks(run: rw.Run, round: int) -> torch.Tensor:
    """What each partition carried away from a round, (partition, element)."""
    carried = run.carried(round)
    return torch.stack([carried[p].carry["own"][next(iter(carried[p].carry["own"]))] for p in sorted(carried)])


def resumed(train, name: str, rounds: int) -> rw.Run:
    """A run that goes on, by its record alone."""
    config = resumed_config(name, None, trust=False, changes={"rounds": rounds})
    return train(**config.model_dump(exclude_unset=True, exclude={"executor", "window"}))


def consensus(run: rw.Run) -> np.ndarray:
    """How far each partition's network was from the mean of all when a round began, (round, partition)."""
    return run.ds["consensus"].values


def matrix(topology: str, partitions: int, exchange: int) -> np.ndarray:
    found = find_topology(topology, partitions)
    rows = [found.weights(each, partitions, exchange) for each in range(partitions)]
    return np.array([[row.get(each, 0.0) for each in range(partitions)] for row in rows])


def loop(run: rw.Run, topology: str, steps: int, lr: float) -> list[np.ndarray]:
    """D-PSGD on all examples of each partition: by round, the (w, w, b) of each as trained."""
    partitions = run.config["partitions"]
    start = [*run["1.weight"][0].values.ravel(), run["1.bias"][0].item()]
    arrived, rounds = np.tile(start, (partitions, 1)), []
    for round in range(run.done):
        arrived = matrix(topology, partitions, round) @ arrived
        for partition in range(partitions):
            generator = torch.Generator().manual_seed(partition)
            inputs = torch.randn(4 + partition, 2, generator=generator, dtype=torch.float64).numpy()
            targets, rows = inputs @ [1, partition] + partition, np.c_[inputs, np.ones(len(inputs))]
            for _ in range(steps):
                slope = 2 / len(rows) * (rows @ arrived[partition] - targets) @ rows
                arrived[partition] -= lr * slope
        rounds.append(arrived.copy())
    return rounds


@pytest.mark.parametrize(
    ("topology", "steps"), [("ring", 3), pytest.param("star", 1, marks=MORE), ("two_level:3:2", 3)]
)
def test_it_is_the_papers_loop(train, linear, topology: str, steps: int) -> None:
    run = train(**linear, topology=topology, partitions=6, local_steps=steps, rounds=7)
    for number, wanted in enumerate(loop(run, topology, steps, 0.05), 1):
        np.testing.assert_allclose(networks(run, number), wanted, rtol=1e-12, atol=1e-12)
        state = run.round(number).state.params["float64"]
        np.testing.assert_allclose(state, np.mean(wanted, 0), rtol=1e-12, atol=1e-12)
    assert run.replay("all").identical


def test_the_distance_to_consensus_is_that_of_the_averaged_networks(train, linear) -> None:
    run = train(**linear, topology="ring", partitions=6, local_steps=2, rounds=4)
    assert (consensus(run)[1] == 0).all()
    for round in (2, 3, 4):
        begun = matrix("ring", 6, round - 1) @ networks(run, round - 1).numpy()
        wanted = np.linalg.norm(begun - networks(run, round - 1).numpy().mean(0), axis=1)
        np.testing.assert_allclose(consensus(run)[round], wanted, rtol=1e-9)
    weights = np.arange(4, 10) / 39  # a metric's mean is weighted by examples
    assert run.history()["consensus"].iloc[4] == pytest.approx((weights * consensus(run)[4]).sum())


@pytest.mark.parametrize("topology", ["ring", *(pytest.param(t, marks=MORE) for t in ("exponential", "torus:2"))])
def test_without_gradients_networks_approach_their_mean_as_fast_as_the_second_eigenvalue(
    train, linear, topology: str
) -> None:
    """From the second round on the learning rate is 0 but for 300 places, so that only the averages move."""
    run = train(**linear, topology=topology, partitions=8, local_steps=1, rounds=12, lr_schedule="step:1:1e-300")
    second = sorted(abs(np.linalg.eigvalsh(matrix(topology, 8, 1))))[-2]
    apart = np.linalg.norm(consensus(run)[2:], axis=1)
    assert apart[0] > 0.1
    assert (apart[1:] <= second * apart[:-1] + 1e-12).all()
    for round in range(2, 13):
        np.testing.assert_allclose(run["1.weight"][round], run["1.weight"][1], rtol=1e-12)


def test_two_levels_that_meet_after_each_round_are_federated_averaging(train, linear) -> None:
    fields = linear | {"partitions": 6, "local_steps": 3, "rounds": 6}
    plain = train(**fields, algorithm="fed_avg", reduce="plain_mean", name="plain")
    met = train(**fields, topology="two_level:2:1", name="met")
    for round in range(7):
        for name in ("1.weight", "1.bias"):
            np.testing.assert_allclose(met[name][round], plain[name][round], rtol=1e-12, atol=1e-12)
    assert consensus(met)[1:].max() < 1e-12


@MORE
def test_a_level_of_all_is_the_same_at_any_k_and_sites_that_never_meet_are_runs_of_their_own(
    train, linear
) -> None:
    fields = linear | {"local_steps": 3, "rounds": 5, "partitions": 6}
    assert (
        train(**fields, topology="two_level:6:9", name="one").digest
        == train(**fields, topology="two_level:2:1", name="other").digest
    )
    site = train(**fields | {"partitions": 3}, algorithm="fed_avg", reduce="plain_mean", name="site")
    apart = train(**fields, topology="two_level:3:9", name="apart")
    # Sites of their own begin each round with their means: partitions 0, 1, 2 have the same data in both runs.
    for round in range(1, 6):
        mean = networks(apart, round)[:3].mean(0)
        np.testing.assert_allclose(mean, site.round(round).state.params["float64"], rtol=1e-12, atol=1e-12)


def test_each_partitions_own_score_is_of_its_own_network_also_on_workers_and_reduced_again(train, client) -> None:
    fields = MOONS | {"data": "digits", "score_partitions": 0.25}
    partitions = describe(plan(rw.TrainConfig(**fields)), gather_here).partitions
    run = train(**fields, rounds=3, name="scored")
    network, stored = run.network(), run.round(3)
    for p, record in stored.commit.updates.items():
        tensors = stored.update_tensors(p)
        own = {name: tensors[f"carry/own/{name}"] for name, _ in network.named_parameters()}
        network.load_state_dict(own)
        examples = partitions.own_part(p, 0)
        loss = torch.nn.functional.cross_entropy(network(examples.inputs), examples.targets).item()
        assert record.metrics["own_loss"] == pytest.approx(loss, rel=1e-5)
    there = train(GraphExecutor(client), 2, **fields, rounds=3, name="there")
    assert there.digest == run.digest
    assert there.ds["own_loss"].equals(run.ds["own_loss"])
    assert run.recombine(3).rounds[0].score == stored.commit.score


def test_edges_of_a_file_are_recorded_and_the_file_is_needed_no_more(train, tmp_path) -> None:
    file = tmp_path / "edges.json"
    file.write_text("[[0, 1], [1, 2], [2, 3]]")
    run = train(**MOONS | {"topology": str(file)}, rounds=2, name="run")
    assert run.config["topology"] == [[0, 1], [1, 2], [2, 3]]
    whole = train(**MOONS | {"topology": [[0, 1], [1, 2], [2, 3]]}, rounds=4, name="whole")
    other = [[0, 1], [1, 2], [2, 0], [0, 3]]
    with pytest.raises(ExperimentDiffers, match=r"\(topology \(\(0, 1\), .* -> \(\(0, 1\)"):
        train(**MOONS | {"topology": other}, rounds=4, name="run")
    file.unlink()
    assert resumed(train, "run", 4).digest == whole.digest
    assert rw.open_run("run").replay("all").identical


def test_a_fork_takes_the_networks_along(train) -> None:
    parent = train(**MOONS, rounds=4, name="parent")
    config = rw.fork("parent@2", rounds=2, name="fork")
    fork = train(**config.model_dump(exclude_unset=True))
    assert torch.equal(networks(fork, 0), networks(parent, 2))
    begun = matrix("ring", 4, 0) @ networks(parent, 2).double().numpy()
    mean = parent.round(2).state.params["float32"].double().numpy()
    np.testing.assert_allclose(consensus(fork)[1], np.linalg.norm(begun - mean, axis=1), rtol=1e-5)
    assert fork.replay("all").identical


@pytest.mark.parametrize("keep", ["last:1", *(pytest.param(keep, marks=MORE) for keep in ("states", "updates:2"))])
def test_neighbours_networks_stay_whatever_else_is_kept(train, keep: str) -> None:
    whole = train(**MOONS, rounds=6, name="whole")
    for rounds in (2, 3, 6):
        assert train(**MOONS, rounds=rounds, keep=keep, name="run").digest == whole.round(rounds).commit.state


def test_a_carried_optimizer_stays_with_its_partition(train) -> None:
    adam = {"optimizer": "AdamW", "lr": 0.01, "optimizer_state": "carried"}
    run = train(**MOONS, **adam, rounds=3)
    assert set(run.carried(3)[0].carry) == {"own", "exp_avg", "exp_avg_sq", "step"}
    assert run.carried(3)[0].carry["step"]["float32"].max() == 9
    assert run.replay("all").identical


def test_a_refused_partition_counts_with_the_state_until_it_has_a_network(train, own) -> None:
    source = """
import torch
def data(partition, partitions):
    inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(partition))
    return inputs * (float("nan") if partition == 2 else 1.0), (inputs.sum(1) > 0).long()
"""
    run = train(data=f"{own(source)}:data", model="logistic", partitions=4, held_out=0, topology="ring", rounds=3)
    assert [*run.carried(3)] == [0, 1, 3]
    state, had = run.round(2).state.params["float32"], run.carried(2)
    begun = (had[0].carry["own"]["float32"] + had[1].carry["own"]["float32"] + state) / 3
    assert run.round(3).update(1).metrics["consensus"] == pytest.approx((begun - state).norm().item(), rel=1e-5)
    assert run.replay("all").identical


def test_stored_updates_are_reduced_in_another_way(train) -> None:
    """With the same reduce a saved round goes on as its parent did, sites and all sites in turn."""
    run = train(**MOONS | {"topology": "two_level:2:2"}, rounds=5, name="run")
    run.recombine(2, reduce="plain_mean", save="saved")
    saved = resumed(train, "saved", 3)
    for number in (1, 2, 3):
        assert torch.equal(networks(saved, number), networks(run, number + 2))


def test_a_topology_alone_takes_its_algorithm_and_the_algorithm_alone_a_ring() -> None:
    alone = rw.TrainConfig(topology="star", lr=0.3)
    assert (alone.algorithm.name, alone.algorithm.options["lr"], alone.topology) == ("d_psgd", 0.3, "star")
    for given in ({}, {"topology": None}):
        assert rw.TrainConfig(algorithm="d_psgd", **given).topology == "ring"
    assert rw.TrainConfig().topology is None
    assert rw.TrainConfig(**json.loads(alone.model_dump_json(exclude_unset=True))) == alone
