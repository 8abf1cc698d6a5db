"""Random configurations of all algorithms give the numbers of plain loops, in every round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from tests.comparison.compare import COUNT, Result, compare, summary
from tests.comparison.drawing import LOSSES, NETWORKS, OPTIMIZERS, REDUCES

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Of torch in the plain loops, as in a map."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def all_agree(results: list[Result]) -> None:
    text = summary(results)
    print(text)
    assert all(result.agrees for result in results), text


def test_random_configurations_agree_with_plain_loops(tmp_path) -> None:
    results = [compare(which, tmp_path / "runs") for which in range(COUNT)]
    all_agree(results)
    lines = "\n".join(result.line for result in results)
    kinds = itertools.chain(ALGORITHMS, NETWORKS, LOSSES, REDUCES, (each["optimizer"] for each in OPTIMIZERS))
    assert [kind for kind in kinds if f"'{kind}'" not in lines] == []


def test_so_do_those_that_run_on_workers(tmp_path) -> None:
    """One of each algorithm; a server's updates are taken in the order in which the workers' came."""
    with connect(None, 2) as client:
        executor = GraphExecutor(client)
        all_agree([compare(which, tmp_path / "runs", executor) for which in range(len(ALGORITHMS))])
