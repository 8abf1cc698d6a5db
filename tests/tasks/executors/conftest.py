"""Fixtures: runs that are compared with those of one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from roundweave.flows.stored import Run


@pytest.fixture
def equal(train) -> Callable[..., Run]:
    """Train the run `there` with an executor; its rounds are those of one process, which are trained first."""
    from tests.tasks.executors.deeds import identities  # which imports Dask

    def trained(executor, window=1, *how, **fields) -> Run:
        reference = train(**fields, name="reference")
        run = train(executor, window, *how, **fields, name="there")
        assert identities(run) == identities(reference)
        return run

    return trained
