"""Fixtures: the experiment of `deeds`, and runs that are compared with those of one process.

`deeds` imports Dask, which before pytest has its handlers would silence those of the fixture `caplog`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roundweave.flows.stored import Run

if TYPE_CHECKING:
    from tests.tasks.executors.deeds import Do


@pytest.fixture
def fields(own) -> dict[str, object]:
    from tests.tasks.executors.deeds import experiment

    return experiment(own)


@pytest.fixture
def do(tmp_path: Path) -> Do:
    """Have something done in the map of a partition, once a round of the run `there` is committed."""
    from tests.tasks.executors.deeds import have_done

    return partial(have_done, tmp_path)


@pytest.fixture
def equal(train) -> Callable[..., Run]:
    """Train the run `there` with an executor; its rounds are those of one process, which are trained first."""
    from tests.tasks.executors.deeds import identities

    def trained(executor, window=1, *how, **fields) -> Run:
        reference = train(**fields, name="reference")
        run = train(executor, window, *how, **fields, name="there")
        assert identities(run) == identities(reference)
        return run

    return trained
