"""A run of few files, for tests that make it anew for each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.hierarchy.schema import Schema
from storage.values.layout import Layout
from storage.values.state import State, Update
from storage.values.tensors import TensorSpec


@pytest.fixture(scope="session")
def small_in(tiny_in: Callable[[Path], object]) -> type:
    """The maker of such a run in a folder of the test's own: one parameter, and a carry."""

    class Small(tiny_in):  # type: ignore[misc, valid-type]
        schema = Schema(Layout((TensorSpec("w", "float32", (3,)),), (), (), ()), partitions=2, carry=("variate",))

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
