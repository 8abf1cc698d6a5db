"""Reducing in shares: the update that ranks put together has the bits of one that is reduced as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import same_bits
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.algorithms.maps.gradient import Gradient
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.algorithms.reduces.tree import fold
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.rounds.job import RoundPlan, Work
from roundweave.tasks.rounds.shares import Nodes, joined_update, nodes_share, state_share
from roundweave.tasks.rounds.steps import BlockResult, Outcome, fold_block, reduce_apply


def work_of(partitions: int) -> Work:
    dealt = SimpleNamespace(split=SimpleNamespace(partitions=partitions))
    return Work(None, Algorithm(Gradient(), Mean(), Sgd(0.1)), dealt, 0)  # type: ignore[arg-type]


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def blocks_of(
    partitions: int, ranks: int, refused: set[int], elements: int, dtype: torch.dtype
) -> list[BlockResult]:
    """What a block for each rank gives of random updates."""
    generator, name = torch.Generator().manual_seed(elements), str(dtype).removeprefix("torch.")
    updates: dict[int, Update | None] = {}
    for partition in range(partitions):
        direction, control = torch.randn(2, elements, generator=generator).to(dtype)
        buffers = {"float32": torch.randn(3, generator=generator), "int64": torch.tensor([partition])}
        sent = Update({name: direction}, buffers, {"control": {name: control}}, 1 + partition % 7)
        updates[partition] = None if partition in refused else sent
    plan, results = RoundPlan(partitions, ranks), []
    for block in range(ranks):
        records = {p: UpdateRecord("", 1, None if updates[p] else "refused") for p in plan.span(block)}
        results.append(BlockResult(fold_block(work_of(partitions), 1, plan.nodes(block), updates), records))
    return results


SIZES = st.integers(1, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(SIZES, st.sets(st.integers(0, 19)), st.integers(1, 200), st.sampled_from(DTYPES))
def test_shares_have_the_bits_of_the_whole(sizes, refused, elements, dtype) -> None:
    partitions, ranks = sizes
    work = work_of(partitions)
    blocks, state = blocks_of(*sizes, refused, elements, dtype), State({"float32": torch.zeros(elements)})
    if refused.issuperset(range(partitions)):
        with pytest.raises(RoundFailed, match=f"0 of {partitions} updates are sound"):
            reduce_apply(work, Outcome(state), blocks)
        return

    def reduced(state: State, nodes: Nodes) -> Update:
        return Mean().finish(state, fold(Mean(), (0, partitions), lambda *node: nodes[node]))

    nodes = {node: value for block in blocks for node, value in block.nodes.items()}
    whole = reduced(state, nodes)
    shares = [(state_share(state, rank, ranks), nodes_share(nodes, rank, ranks)) for rank in range(ranks)]
    joined = joined_update([reduced(*share) for share in shares])
    assert joined.weight == whole.weight
    for one, other in (
        (joined.direction, whole.direction),
        (joined.buffers, whole.buffers),
        (joined.extras["control"], whole.extras["control"]),
    ):
        assert one.keys() == other.keys()
        assert all(same_bits(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def four() -> Iterator[Client]:
    with connect(None, 4) as client:
        yield client


@pytest.mark.parametrize("algorithm", ["fed_avg", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_a_group_of_four_sends_half_of_what_it_would_and_gives_the_same_bits(train, four, algorithm) -> None:
    """Whole updates: each of four ranks has its own for three others. In shares: a quarter for each, twice."""
    fields = {"algorithm": algorithm, "model_options": {"hidden": 10_000}, "partitions": 6, "rounds": 3}
    fields |= {"local_steps": 1}
    reference = train(**fields, name="reference")
    run = train(RanksExecutor(four), 3, **fields, name="shared")
    assert run.digest == reference.digest
    commit = run.round(2).commit
    assert (commit.executor, commit.process_group.ranks) == ("ranks", 4)
    size = sum(update.numel() * 4 for update in run.round(2).params.values())
    size *= 2 if algorithm == "scaffold" else 1  # its control variates are sent, too
    # Of six partitions in four blocks two have one node, and two have one of two partitions: four vectors.
    assert commit.process_group.exchanged["updates"] == pytest.approx((3 + 3) * size, rel=0.01)
