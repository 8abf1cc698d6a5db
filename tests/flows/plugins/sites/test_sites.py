"""Examples of sites are read, counted and described there alone, and what is told of them was asked for."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest

from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.flows.plugins.cohort.sampler import Cohort
from roundweave.flows.plugins.parameter_server.steps import make_pushes
from roundweave.flows.serving.ahead import started
from roundweave.storage.errors import UsageError
from roundweave.storage.rounds.commits import InFlight
from roundweave.storage.values.digests import update_digest
from roundweave.tasks.data.loading import Partition
from roundweave.tasks.data.partitions import forget_examples
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import Attempt, Job, asked_of
from roundweave.tasks.rounds.steps import Outcome

SOURCE = """
import torch
from pathlib import Path
def data(partition, partitions):
    Path(__file__).with_name("here").read_text()
    inputs = torch.zeros(60 + 30 * partition, 2)
    inputs[7, 1] = 7.25
    return inputs, torch.arange(len(inputs)) % 2
def one_number(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()
"""
RACKS = """
import roundweave as rw
from roundweave.tasks.data.splits.placement import Placement
class Racks(rw.Plugin):
    decides = True
    def plan(self, plan):
        return plan.fill("racks", placement=Placement("rack", ("a", "b")))
"""


@pytest.fixture
def described(own, tmp_path: Path):
    """The work and the description of a new run over two sites, by an executor that is at each of them."""
    fields = {"data": f"{own(SOURCE)}:data", "sites": "berlin,paris", "root": tmp_path / "runs"}
    (tmp_path / "here").touch()
    return lambda **more: describe(plan(TrainConfig(**fields | more)), InlineExecutor().gather)


def test_who_draws_a_cohort_by_size_reads_no_examples(described, tmp_path: Path) -> None:
    """A tenth is held out, and of the rest a third for scores of their own: 36 and 54 are trained on."""
    fields = {"cohort": 1, "cohort_by_size": True, "score_partitions": 1 / 3}
    one, present = (described(**fields, **more).partitions for more in ({}, {"cohort_from": "present"}))
    (tmp_path / "here").unlink()
    forget_examples()
    for round in range(1, 9):
        drawn = Cohort(1, by_size=True).draw(0, round, [36, 54])
        assert asked_of(one, 0, round) == asked_of(present, 0, round, (0, 1)) == drawn


def test_columns_outputs_and_targets_leave_where_that_is_asked_for(described, own) -> None:
    assert not described().description.columns.columns
    told = described(describe_sites=True).description.columns.columns
    assert (told["inputs 1"].mean, told["inputs 1"].bins) == (0.0, {0: 148})
    assert told["targets"].categories == {"0": 75, "1": 75}
    scores = {"scores": (f"{own(SOURCE)}:one_number",)}
    with pytest.raises(UsageError, match=r"^one_number needs held-out outputs and targets; give describe_sites"):
        described(**scores)
    assert described(**scores, describe_sites=True).objective.whole == ("one_number",)


def test_a_packed_push_of_a_site_is_recorded_by_what_its_receiver_unpacks(described, tmp_path: Path) -> None:
    work = described(algorithm="fed_buff", buffer=1, compress="int8").work
    job = Job(work, Attempt(str(tmp_path / "runs/r.zarr"), "token", epoch=1, rounds=4))
    due = (0, InFlight(), [Outcome(work.objective.initial())], {})
    (pushed,) = make_pushes(job, {0: Partition(work.partitions.load(0, 0))}, [due], operator.call)
    assert (pushed.update.direction, pushed.record.digest) == ({}, update_digest(pushed.update.received()))


def test_a_plugin_of_the_user_s_places_partitions_and_no_two_plugins_do(described, own) -> None:
    fields = {"partitions": 2, "plugins": [f"{own(RACKS, 'racks')}:Racks"]}
    placed = described(sites=None, **fields)
    assert placed.partitions.called(1) == "partition b"
    with pytest.raises(UsageError, match=r"^a partition of a rack is mapped by workers there: name their --sched"):
        started(TrainConfig(executor="inline"), placed.plan.placement)
    with pytest.raises(UsageError, match=r"^racks and sites both decide the placement; leave one of them out$"):
        described(**fields)
    with pytest.raises(UsageError, match=r"^'a b' is no name of a site; give letters"):
        described(sites="a b,c")


def test_where_partitions_are_is_in_the_experiment_and_what_they_tell_is_not() -> None:
    assert ("sites" in Experiment.model_fields, "describe_sites" in Experiment.model_fields) == (True, False)
    assert TrainConfig(sites="berlin,paris:3").partitions == 4


def test_partitions_go_by_the_names_of_their_sites_and_with_several_at_one_by_number_too(described) -> None:
    two, three = described().partitions, described(sites="berlin,paris:2").partitions
    assert (two.names, two.called(0), two.called(0, 1)) == (
        ("berlin", "paris"),
        "partition berlin",
        "partition berlin, paris",
    )
    assert (three.names, three.called(2)) == (("berlin", "paris", "paris"), "partition 2 (paris)")
