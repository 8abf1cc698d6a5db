"""Law 3 for parts that take a norm of whole vectors, and for those that say that they go by element."""

from __future__ import annotations

import pytest

from roundweave.storage.errors import UsageError
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.rows import but_first
from tests.tasks.executors.deeds import beside, lines

SOURCE = """
from dataclasses import dataclass, replace
import torch
import roundweave as rw

def unit(vectors):
    norm = torch.stack([vector.double().square().sum() for vector in vectors.values()]).sum().sqrt()
    return {dtype: (vector / norm).to(vector.dtype) for dtype, vector in vectors.items()}

class UnitSteps(rw.Sgd):
    def __call__(self, state, update):
        return super().__call__(state, replace(update, direction=unit(update.direction)))

class UnitMean(rw.Mean):
    def finish(self, state, node):
        update = super().finish(state, node)
        return replace(update, direction=unit(update.direction))

@dataclass(frozen=True)
class Signs(rw.Apply):
    elementwise = True
    def __call__(self, state, update):
        params = {k: v - 0.01 * update.direction[k].sign() for k, v in state.params.items()}
        return replace(state, params=params, buffers=update.buffers or state.buffers, round=state.round + 1)

class Listed(rw.Mean):
    elementwise = True
    def join(self, left, right):
        return [left, right]

MAP = rw.LocalSteps(local_steps=2)
def norm_apply(): return rw.Algorithm(MAP, rw.Mean(), UnitSteps())
def norm_reduce(): return rw.Algorithm(MAP, UnitMean(), rw.Sgd())
def by_element(): return rw.Algorithm(MAP, rw.Mean(), Signs())
def listed(): return rw.Algorithm(MAP, Listed(), rw.Sgd())
"""
SMALL = """
from roundweave.tasks.rounds import shares
shares.SHARE_BYTES, shares.LEAST_BYTES = 512, 0
"""
"""Has vectors of a kilobyte reduced and applied in shares, also on workers, which load the file."""

FIELDS = {"data": "digits", "model": "mlp", "model_options": {"hidden": 33}, "partitions": 3, "rounds": 2}


client = beside(3)
"""Workers in which what `SMALL` sets stays."""


@pytest.fixture
def small(own, monkeypatch) -> str:
    """The file of the parts, in whose runs large vectors are small."""
    for name in ("shares.SHARE_BYTES", "shares.LEAST_BYTES"):
        monkeypatch.setattr(f"roundweave.tasks.rounds.{name}", 1 << 30)  # set back after the test
    return own(SOURCE + SMALL, "small")


@pytest.mark.parametrize("algorithm", but_first(["norm_apply"], ["norm_reduce", "by_element"]))
def test_a_part_has_the_same_bits_whole_and_in_shares(train, client, own, small, algorithm) -> None:
    """Whoever computes it."""
    whole = train(**FIELDS, algorithm=f"{own(SOURCE)}:{algorithm}", name="whole")
    for executor in (None, GraphExecutor(client), RanksExecutor(client)):
        run = train(executor, 3, **FIELDS, algorithm=f"{small}:{algorithm}", name=type(executor).__name__)
        assert run.digest == whole.digest
    assert run.round(-1).commit.executor == "ranks"
    assert run.replay("all").identical


ROWS = [("norm_reduce", "UnitMean("), ("by_element", None)]


@pytest.mark.parametrize(("algorithm", "says"), but_first([("norm_apply", "UnitSteps(")], ROWS))
def test_ranks_share_only_what_goes_by_element(equal, client, small, caplog, algorithm, says) -> None:
    run = equal(RanksExecutor(client), 3, **FIELDS, ranks=2, algorithm=f"{small}:{algorithm}")
    assert [line.startswith(says) for line in lines(caplog)] == ([True] if says else [])
    assert run.round(-1).commit.executor == ("graph" if says else "ranks")


def test_nodes_that_cannot_be_cut_are_refused_in_a_line(train, small) -> None:
    with pytest.raises(UsageError, match="its nodes have tensors that are no direction, buffers or extras"):
        train(**FIELDS, algorithm=f"{small}:listed")
