"""A run of few files, for tests that make it anew for each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec


@pytest.fixture(scope="session", params=[1, 2], ids=["alone", "shards"])
def small_in(request: pytest.FixtureRequest, tiny_in: Callable[[Path], object]) -> type:
    """The maker of such a run in a folder of the test's own: one parameter and a carry."""

    class Small(tiny_in):  # type: ignore[misc, valid-type]
        layout = Layout((TensorSpec("w", "float32", (3,)),), (), (), ())
        schema = Schema(layout, partitions=2, carry=("variate",), shard=request.param)

        def state(self, round: int) -> State:
            return State({"float32": super().state(round).params["float32"][:3]}, {}, {}, {}, round)

        def update(self, round: int, partition: int) -> Update:
            whole = super().update(round, partition)
            direction, variate = (v["float32"][:3] for v in (whole.direction, whole.carry["variate"]))
            carry = {"variate": {"float32": variate}}
            return Update({"float32": direction}, {}, {}, whole.weight, whole.metrics, carry)

    return Small


@pytest.fixture
def small(small_in: type, tmp_path: Path) -> object:
    """One under the runs of the test."""
    return small_in(tmp_path / "runs")
