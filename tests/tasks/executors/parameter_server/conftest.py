"""Fixtures: what proves a run with a parameter server, and one whose partition 2 does what it is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import roundweave as rw
from roundweave.flows.stored import Run
from tests.tasks.executors.parameter_server.proving import identities, staleness_by_the_rows


@pytest.fixture
def proven(train: Callable[..., Run]) -> Callable[[Run], None]:
    """A run is sound, its rounds replay, and its recorded order gives the same run without a cluster."""

    def prove(run: Run, **fields: object) -> None:
        assert run.verify().sound
        assert rw.open_run(run.path).replay("all", trust=True).identical
        again = train(**fields, order=f"recorded:{run.path}", name=f"{run.name}-again")
        assert identities(again) == identities(run)
        assert again.digest == run.digest
        staleness_by_the_rows(run, int(str(fields["partitions"])))

    return prove


@pytest.fixture
def deeds(own) -> dict[str, object]:
    """An experiment whose partition 2 does what a file beside its code says."""
    from tests.tasks.executors.deeds import SOURCE  # which imports Dask (see the fixtures of all executors)

    path = own(SOURCE)
    return {"data": f"{path}:data", "model": f"{path}:Network", "partitions": 3, "held_out": 0}


@pytest.fixture
def arm(do) -> Callable[..., Callable[[object], None]]:
    """Have partition 2 do something after each of some rounds."""

    def after(rounds: tuple[int, ...], deed: str, always: bool = False) -> Callable[[object], None]:
        def armed(commit) -> None:
            if commit.round in rounds:
                do(deed, 2, always=always)

        return armed

    return after
