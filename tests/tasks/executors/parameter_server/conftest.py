"""Fixtures: what proves a run with a parameter server, and one whose partition 2 does what it is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from roundweave.flows.stored import Run


@pytest.fixture
def proven(train: Callable[..., Run]) -> Callable[..., None]:
    """A run is sound, its rounds replay, and its recorded order gives the same run without a cluster."""
    from tests.tasks.executors.parameter_server.proving import prove  # which imports Dask

    return partial(prove, train)


@pytest.fixture
def deeds(fields) -> dict[str, object]:
    """An experiment of three partitions, whose maps do what files beside its code say."""
    return {name: fields[name] for name in ("data", "model", "held_out")} | {"partitions": 3}
