"""Random configurations of all algorithms give the numbers of plain loops, in every round."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.executors.graph import GraphExecutor
from tests.comparison import drawing
from tests.comparison.compare import COUNT, CROSSED_COUNT, Result, compare, summary
from tests.comparison.drawing import LOSSES, NETWORKS, OPTIMIZERS, REDUCES
from tests.rows import but_first

NAMES = sorted(ALGORITHMS)

FIRST = {
    "async_sgd": "one of its own learning rate and staleness, and maps of labels",
    "d_psgd": "neighbours, and examples that each partition brings",
    "downpour": "dropout, and replicas that fetch seldom",
    "fed_adagrad": "tied tensors, weights of each partition's own, gradients in pieces, a median",
    "fed_avg": "sequences of many lengths, and Yogi",
    "fed_avgm": "BatchNorm, clipped gradients and a local optimizer",
    "fed_dyn": "pixels that are scaled, and what partitions carry",
    "fed_prox": "buffers, and rates that warm up",
    "fed_yogi": "inputs by name, and a loss of the user's",
    "q_fed_avg": "soft labels, and updates that are weighted by losses",
    "scaffold": "extras that are averaged apart, and steps within an epoch",
}
"""What each has that the others have not, and what would be wrong in silence."""

FIRST_CROSSED = {
    6: "sequences of other lengths that validate, and a fork's median",
    10: "what partitions of a server had not sent yet, in a fork",
    14: "a loss with weights of all that a network gives in a dict",
    20: "private heads in a fork",
    21: "a network that draws in evaluation, an optimizer of one's own that is carried, validation",
    33: "columns and classes in other orders, weights of classes, transforms that draw",
    113: "a loss of the network's own for the next token, rounds that are made again, a file to begin with",
    134: "buffers and columns of a fork, a share that is drawn, transforms that draw, held out by partitions",
}
"""The same of those that cross what is new."""


def all_agree(results: list[Result]) -> None:
    assert all(result.agrees for result in results), summary(results)


@pytest.mark.parametrize("name", but_first(FIRST, NAMES))
def test_a_configuration_of_each_algorithm_agrees_with_a_plain_loop(tmp_path: Path, name: str) -> None:
    all_agree([compare(NAMES.index(name), tmp_path / "runs")])


@pytest.mark.dear("parents and children by both ways, each with what no other test crosses")
@pytest.mark.parametrize("number", but_first(FIRST_CROSSED, range(len(NAMES) + 1)))
def test_so_does_one_that_crosses_what_is_new(tmp_path: Path, number: int) -> None:
    all_agree([compare(number, tmp_path / "runs", crossed=True)])


@pytest.mark.slow
def test_random_crossings_agree_with_plain_loops(tmp_path: Path) -> None:
    results = [compare(which, tmp_path / "runs", crossed=True) for which in range(CROSSED_COUNT)]
    all_agree(results)
    lines = "\n".join(result.line for result in results)
    drawn = ["fed_per", "grouped", "contrast", "transform", "held_out_transform", "dampening", "validation"]
    kinds = itertools.chain(ALGORITHMS, drawing.CROSSED, drawing.COMPRESSORS, drawing.KEEPS, drawing.BEGINS[1:])
    drawn += [loss.__name__ for loss in drawing.WHOLE]
    assert [kind for kind in (*kinds, *drawn) if f"'{kind}'" not in lines] == []


@pytest.mark.slow
def test_random_configurations_agree_with_plain_loops(tmp_path: Path) -> None:
    results = [compare(which, tmp_path / "runs") for which in range(COUNT)]
    all_agree(results)
    lines = "\n".join(result.line for result in results)
    kinds = itertools.chain(ALGORITHMS, NETWORKS, LOSSES, REDUCES, (each["optimizer"] for each in OPTIMIZERS))
    assert [kind for kind in kinds if f"'{kind}'" not in lines] == []


@pytest.mark.slow
def test_so_do_those_that_run_on_workers(client, tmp_path: Path) -> None:
    """One of each algorithm; a server's updates are taken in the order in which the workers' came."""
    executor = GraphExecutor(client)
    all_agree([compare(which, tmp_path / "runs", executor) for which in range(len(NAMES))])
