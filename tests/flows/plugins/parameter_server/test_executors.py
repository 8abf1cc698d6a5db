"""A parameter server gives the bits of the order that it records, in each executor."""

from __future__ import annotations

import pytest

import roundweave as rw
from roundweave.storage.errors import RoundFailed
from tests.contracts.test_executors import KINDS, MEMORY, frees_its_workers
from tests.flows.plugins.parameter_server.proving import RUNS, SMALL, prove
from tests.rows import but_first
from tests.tasks.executors.deeds import NAN, executors, identities, idle, refused, until

# The first suite has one for each risk; a cohort's are those that sit out, and what they carry meanwhile.
FIRST = [("graph", "easgd-cohort"), ("ranks", "easgd-cohort"), ("graph", "fed_buff")]


class TestServer:
    @pytest.mark.parametrize(("kind", "name"), but_first(FIRST, KINDS, RUNS), indirect=["kind"])
    def test_a_run_is_that_of_its_recorded_order(self, train, make, kind, name) -> None:
        fields = SMALL | RUNS[name] | {"rounds": 16} | ({"partitions": 7} if "cohort" in name else {})
        run = train(make(), 10, **fields, name="run")
        assert run.done == 16
        assert {*executors(run)} == {kind}
        prove(train, run, **fields)

    def test_a_run_is_scored_as_its_recorded_order_and_ends_at_its_target(self, train, make, client) -> None:
        fields = SMALL | RUNS["async_sgd"] | {"rounds": 2000, "evaluate_every": 5, "target_accuracy": 0.5}
        run = train(make(), 50, **fields, name="run")
        assert run.status == "complete"
        assert run.round(-1).score.values["accuracy"] >= 0.5
        assert 5 <= run.done < 2000
        until(lambda: idle(client))
        again = train(**fields, order="recorded:run", name="again")
        assert identities(again) == identities(run)
        scores = {n: run.round(n).score for n in run.committed if run.round(n).score}
        assert [*scores] == [*range(0, run.done + 1, 5)]
        assert scores == {n: again.round(n).score for n in scores}

    def test_a_map_that_fails_ends_the_run_and_keeps_its_rounds(self, train, client, deeds, do, make) -> None:
        do(MEMORY, 2, 2, always=True)
        fields = deeds | RUNS["fed_buff"] | {"rounds": 1000}
        says = r"^round \d+: the map of partition 2 failed with MemoryError: none left.*$"
        with pytest.raises(RoundFailed, match=says):
            train(make(), 50, **fields, name="there")
        assert rw.open_run("there").done >= 2
        assert rw.open_run("there").verify().sound
        frees_its_workers(client)

    def test_a_partition_of_nan_is_refused_and_one_of_all_ends_the_run(self, train, deeds, do, make) -> None:
        do(NAN, 2, at="data", always=True)
        some = deeds | RUNS["async_sgd"] | {"rounds": 12, "model": "logistic"}
        runs = (train(make(), 9, **some, name=f"some{n}") for n in range(5))  # one may not get to partition 2
        run = next(filter(refused, runs))
        assert {p for partitions in refused(run).values() for p in partitions} == {2}
        prove(train, run, **some)
        do(NAN, range(3), at="data", always=True)
        says = r"round \d: no partition has a sound update left; partition \d: direction of 1.weight has"
        with pytest.raises(RoundFailed, match=says):
            train(make(), 9, **some, name="every")
