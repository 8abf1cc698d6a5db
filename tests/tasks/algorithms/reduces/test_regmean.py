"""RegMean as a reduce: solved by what maps observed on their own examples, stored, replayed, reduced again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from roundweave import LocalSteps, State, TrainConfig, Update, UsageError, reduce_all, views
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.matching.solving.grams import gram_matrices, layers_of
from roundweave.tasks.matching.solving.solve import regmean
from roundweave.tasks.rounds.job import Work

FIELDS = {"data": "digits", "split": "shards:2", "partitions": 4, "rounds": 2, "reduce": "regmean"}
FIELDS |= {"model_options": {"hidden": 16}, "local_steps": 3}


@pytest.fixture(scope="module")
def mapped() -> tuple[Work, State, list[Update]]:
    """The work of a run, its initial state, and the updates of its partitions."""
    work = describe(plan(TrainConfig(**FIELDS, name="never")), gather_here).work
    objective, state = work.objective, work.objective.initial()
    examples = [work.partitions.load(0, partition) for partition in range(4)]
    return work, state, [work.algorithm.map(objective, state, each, {}, n) for n, each in enumerate(examples)]


def test_a_map_observes_the_layers_of_where_it_arrived(mapped) -> None:
    work, state, updates = mapped
    objective, inner = work.objective, work.algorithm.map.map
    assert isinstance(inner, LocalSteps)
    train = work.partitions.load(0, 1)
    plain = inner(objective, state, train, {}, 1)
    assert all(torch.equal(plain.direction[k], v) for k, v in updates[1].direction.items())
    network = objective.network(state)
    arrived = views(objective.layout.params, {k: s - plain.direction[k] for k, s in state.params.items()})
    (drawn,) = train.batches(min(1000, len(train)), 1, 1)
    wanted = gram_matrices(network, arrived, drawn.inputs)
    found = views(work.algorithm.map.observes, updates[1].observed)
    assert found.keys() == wanted.keys() == {"fc1.weight", "fc2.weight"}
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_reduced_update_ends_at_the_solved_layers(mapped) -> None:
    work, state, updates = mapped
    params = work.objective.layout.params
    arrived = [
        {n: t.clone() for n, t in views(params, {k: s - u.direction[k] for k, s in state.params.items()}).items()}
        for u in updates
    ]
    grams = [views(work.algorithm.map.observes, update.observed) for update in updates]
    layers = layers_of(work.objective.fresh(), work.partitions.sample(0).inputs)
    wanted = dict(regmean(arrived, grams, layers, [update.weight for update in updates]))
    reduced = reduce_all(work.algorithm.reduce, state, updates)
    end = views(params, {k: s - reduced.direction[k] for k, s in state.params.items()})
    for name, tensor in wanted.items():
        torch.testing.assert_close(end[name], tensor, rtol=1e-5, atol=1e-6)
    assert reduced.weight == sum(update.weight for update in updates)


def test_what_was_observed_is_stored_replayed_and_reduced_again(train) -> None:
    run = train(**FIELDS, name="one")
    assert run.round(2).update_tensors(1)["updates/observed/fc1.weight"].shape == (1, 65, 65)
    assert run.tree["observed/fc2.weight"].shape == (3, 4, 1, 17, 17)
    assert run.replay("all", executor="inline").identical
    (by_mean,), (again,) = (run.recombine(2, reduce=reduce).rounds for reduce in ("mean", None))
    assert again.digest == run.round(2).commit.state != by_mean.digest


def test_updates_without_matrices_are_refused(mapped) -> None:
    work, state, updates = mapped
    with pytest.raises(UsageError, match="have no Gram matrices"):
        reduce_all(work.algorithm.reduce, state, [replace(update, observed={}) for update in updates])
