"""Asynchronous runs on a cluster: workers race and die, and their order of arrival gives the same bits."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

import roundweave as rw
from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.flows.stored import Run
from roundweave.storage.errors import ClusterError, RoundFailed
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import Lost, Seen
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.parameter_server import on_dask
from roundweave.tasks.rounds.persistence.pushes import commit_server_rounds
from tests.tasks.executors.deeds import KILL, SOURCE, replay_job
from tests.tasks.executors.parameter_server.proving import ROUNDS, RUNS, SMALL, identities
from tests.tasks.sampled import sampled


@pytest.mark.parametrize("fields", sampled(2, RUNS.values()), ids=RUNS)
def test_a_clusters_run_is_that_of_its_recorded_order(train, client, proven, fields) -> None:
    fields = SMALL | fields
    run = train(GraphExecutor(client), 5, **fields, name="run")
    assert run.done == ROUNDS
    proven(run, **fields)


@pytest.mark.parametrize(("window", "partitions"), [(1, 2), (3, 5), (100, 1)])
def test_windows_of_any_size_and_any_number_of_partitions(train, client, proven, window, partitions) -> None:
    """Fewer partitions than workers, as many, and more."""
    fields = SMALL | RUNS["async_sgd"] | {"partitions": partitions}
    proven(train(GraphExecutor(client), window, **fields, name="run"), **fields)


@pytest.mark.parametrize("name", sampled(2, ["fed_buff-cohort", "fed_buff"]))
def test_a_run_replays_on_the_cluster_too(train, client, name) -> None:
    run = train(GraphExecutor(client), 5, **SMALL | RUNS[name], name="run")
    address = client.scheduler.address
    replay = rw.open_run(run.path).replay("all", executor="graph", scheduler=address)
    assert replay.identical
    assert replay.replayed == list(range(1, ROUNDS + 1))


@pytest.mark.parametrize("name", sampled(3, ["easgd", "fed_buff", "easgd-cohort", "fed_buff-cohort"]))
def test_what_was_in_hand_is_mapped_again_from_its_row(client, proven, tmp_path, name) -> None:
    """The generator is dropped within a window, by executors that know of nothing before."""
    fields = SMALL | RUNS[name]
    config = TrainConfig(root=tmp_path / "runs", name="run", **fields)
    for stop in (2, 5, 6, ROUNDS):
        executor = GraphExecutor(client)
        with prepared(resolve(config), executor) as ready:
            before = ready.store.log.read(ready.done)
            for commit in executor.run(ready.job, ready.done + 1, ROUNDS):
                for partition, update in commit.updates.items():
                    item = before.server.in_flight.get(partition) if before.server else None
                    if item:
                        assert (update.arrival.push, update.arrival.version) == (item.push, item.version)
                before = commit
                if commit.round >= stop:
                    break
    run = Run(ready.store.address)
    assert run.done == ROUNDS
    proven(run, **fields)


def test_rounds_that_are_scored_have_the_scores_of_the_recorded_order(train, client) -> None:
    fields = SMALL | RUNS["async_sgd"] | {"evaluate_every": 4}
    run = train(GraphExecutor(client), 12, **fields, name="run")
    again = train(**fields, order="recorded:run", name="again")
    assert [round for round in range(ROUNDS + 1) if run.round(round).score] == [0, 4, 8, 12]
    assert [run.round(n).score for n in (0, 4, 8, 12)] == [again.round(n).score for n in (0, 4, 8, 12)]


def test_a_run_stops_at_its_target(train, client) -> None:
    fields = SMALL | RUNS["async_sgd"] | {"rounds": 200, "evaluate_every": 5, "target_accuracy": 0.5}
    run = train(GraphExecutor(client), 50, **fields, name="run")
    assert run.round(run.done).score.values["accuracy"] >= 0.5
    assert run.done % 5 == 0
    assert run.done < 200
    assert identities(train(**fields, order="recorded:run", name="again")) == identities(run)


@pytest.mark.parametrize("name", ["async_sgd", "fed_buff"])
def test_a_map_that_fails_ends_the_run_by_name(train, client, deeds, arm, name) -> None:
    armed = arm((2,), "raise MemoryError('none left')", always=True)
    fields = deeds | RUNS[name] | {"rounds": 100}
    says = r"round \d+: the map of partition 2 failed with MemoryError: none left"
    with pytest.raises(RoundFailed, match=says) as caught:
        train(GraphExecutor(client), 50, armed, **fields, name="failing")
    assert "\n" not in str(caught.value)
    assert rw.open_run("failing").verify().sound


def test_a_commit_under_way_at_an_error_is_told_of(train, client, deeds, arm, monkeypatch) -> None:
    told, armed = list[int](), arm((2,), "raise MemoryError('none left')", always=True)

    def slowly(*given: object) -> object:
        time.sleep(1)
        return commit_server_rounds(*given)

    def tell(commit) -> None:
        told.append(commit.round)
        armed(commit)

    monkeypatch.setattr(on_dask, "commit_server_rounds", slowly)
    with pytest.raises(RoundFailed, match="none left"):
        train(GraphExecutor(client), 50, tell, **deeds | RUNS["async_sgd"] | {"rounds": 100}, name="failing")
    time.sleep(1.5)  # a commit that nobody waited for would have ended
    assert told == list(range(1, rw.open_run("failing").done + 1))


def test_a_run_that_failed_goes_on_once_what_failed_is_mended(train, client, deeds, arm, proven, tmp_path) -> None:
    fields = deeds | RUNS["downpour"] | {"rounds": 30}
    with pytest.raises(RoundFailed):
        train(GraphExecutor(client), 50, arm((2,), "raise MemoryError", always=True), **fields, name="run")
    (tmp_path / "do-2-0-always").unlink()
    run = train(GraphExecutor(client), 50, **fields, name="run")
    assert run.done == 30
    proven(run, **fields)


def test_a_partition_of_nan_is_refused_and_one_of_all_ends_the_run(train, client, own, proven) -> None:
    source = SOURCE.replace("inputs[:, 0] = partition", "inputs[:, 2] *= torch.nan if partition in {bad} else 1")
    fields = {"model": "logistic", "partitions": 3, "rounds": 9, "held_out": 0, **RUNS["async_sgd"]}
    some = fields | {"data": f"{own(source.replace('{bad}', '[2]'))}:data", "rounds": 30}
    run = train(GraphExecutor(client), 9, **some, name="some")
    assert {p for round in range(1, 31) for p in run.round(round).refused} == {2}
    proven(run, **some)
    every = fields | {"data": f"{own(source.replace('{bad}', '[0, 1, 2]'), 'every')}:data"}
    says = r"round \d: no partition has a sound update left; partition \d: direction of 1.weight has"
    with pytest.raises(RoundFailed, match=says):
        train(GraphExecutor(client), 9, **every, name="every")


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("async_sgd", "easgd", "fed_buff")]


@pytest.mark.parametrize("name", ["downpour", *SLOW, "fed_buff-cohort"])
def test_killed_workers_cost_what_was_in_hand_and_all_replays(train, deeds, arm, proven, caplog, name) -> None:
    fields = deeds | RUNS[name] | {"rounds": 24}
    with connect(None, 2) as client:
        run = train(GraphExecutor(client), 12, arm((3, 9), KILL), **fields, name="killed")
        assert run.done == 24
    assert "is lost; mapped again in push " in caplog.text
    proven(run, **fields)


def test_a_partition_that_ends_every_worker_is_named(train, deeds, arm) -> None:
    """Whoever else had bad luck before; the others would go on for a thousand rounds."""
    fields = deeds | RUNS["async_sgd"] | {"rounds": 1000}
    says = r"round \d+ was lost \d times \(workers died at partition 2: .*`roundweave resume` goes on"
    with connect(None, 2) as client, pytest.raises(ClusterError, match=says) as caught:
        executor = GraphExecutor(client)
        executor.pool.deaths.update({0: Fraction(1), 1: Fraction(2)})
        train(executor, 1000, arm((6,), KILL, always=True), **fields, name="deadly")
    assert "\n" not in str(caught.value)
    assert rw.open_run("deadly").verify().sound


def test_a_death_counts_as_a_share_for_each_that_may_have_caused_it(client, tmp_path, monkeypatch, train) -> None:
    """Two workers die in one look, of which each has a deadly push and others; then one with that push alone."""
    executor = GraphExecutor(client)
    run = train(executor, 5, **SMALL | RUNS["async_sgd"], name="run")
    job = replay_job(run, SMALL | RUNS["async_sgd"] | {"name": "run"}, tmp_path)

    def dies_with(*pushes: tuple[int, ...]) -> Lost:
        return Lost("tcp://gone", tuple(("push", "reader-1-2", 1, each) for each in pushes), ())

    for lost, deaths in (
        (
            (dies_with((0,), (2,)), dies_with((1,), (0, 2))),
            {0: Fraction(5, 6), 1: Fraction(1, 3), 2: Fraction(5, 6)},
        ),
        ((dies_with((2,)),), {0: Fraction(5, 6), 1: Fraction(1, 3), 2: Fraction(11, 6)}),
    ):
        monkeypatch.setattr(executor.pool._watch, "look", lambda lost=lost: Seen((), lost, {}))
        assert executor.pool.look(job)
        assert executor.pool.deaths == deaths
    assert executor.pool.suspects() == "workers died at partition 2: "
