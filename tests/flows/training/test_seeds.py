"""The seeds of the split and of the initial weights vary alone, and are the run's seed unless they are given."""

from __future__ import annotations

import roundweave as rw

SMALL = {"data": "digits", "model": "logistic", "partitions": 4, "cohort": 2, "local_steps": 1, "rounds": 2}


def parts(run: rw.Run) -> tuple[str, list[int], list[list[int]], str]:
    """The initial weights, who took part, the examples of partition 0, and the last state."""
    rounds = [[*run.round(number).commit.updates] for number in (1, 2)]
    return run.round(0).commit.state, rounds, run.examples(0).index.tolist(), run.digest


def test_each_seed_decides_what_it_names_and_nothing_else(train) -> None:
    weights, cohorts, examples, digest = parts(train(name="plain", seed=5, **SMALL))
    given = {"same": {"split_seed": 5, "init_seed": 5}, "split": {"split_seed": 6}, "init": {"init_seed": 6}}
    same, split, init = (parts(train(name=name, seed=5, **SMALL, **seeds)) for name, seeds in given.items())
    assert same == (weights, cohorts, examples, digest)
    assert (split[:2], split[2] != examples, split[3] != digest) == ((weights, cohorts), True, True)
    assert (init[0] != weights, init[1:3], init[3] != digest) == (True, (cohorts, examples), True)
    other = parts(train(name="other", seed=6, split_seed=5, init_seed=5, **SMALL))
    assert (other[0], other[1] != cohorts, other[2]) == (weights, True, examples)


def test_a_stored_network_is_built_with_its_own_seed_and_a_fork_keeps_the_split(train) -> None:
    run = train(name="init", seed=5, init_seed=6, split_seed=7, **SMALL)
    assert run.model().seed == 6
    built = dict(run.model().build().named_parameters())
    assert all((built[name] == tensor).all() for name, tensor in run.round(0).params.items())
    fork = rw.fork("init@1", root=run.address.rpartition("/")[0], seed=8)
    assert (fork.seed, fork.init_seed, fork.split_seed) == (8, 6, 7)
