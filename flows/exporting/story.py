"""A stored run in the form that experiment trackers take: its configuration and the numbers of each round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.runs.listing import flat_config
from storage.runs.run import StoredRun


@dataclass(frozen=True)
class Moment:
    """A round's numbers by name, and the time of its commit in seconds since the epoch."""

    round: int
    time: float
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Story:
    """A run for a tracker: its name, its flat configuration, facts such as its status and digest, its rounds."""

    name: str
    config: Mapping[str, Any]
    facts: Mapping[str, str]
    moments: tuple[Moment, ...]


def story_of(run: StoredRun) -> Story:
    """The story of a run up to its last committed round. Numbers that are missing or not finite are left out."""
    config = {name: value for name, value in flat_config(run.config).items() if value is not None}
    facts = {
        "status": run.status,
        "state": run.digest,
        "chain": run.chain,
        "algorithm": run.attributes["algorithm"],
    }
    return Story(run.name, config, facts, tuple(_moments(run)))


def _moments(run: StoredRun) -> list[Moment]:
    table = run.history()
    rows = zip(run.committed, table.to_dict("records"), strict=True)
    return [
        Moment(
            round,
            run.round(round).commit.time or run.created,
            {str(name): float(value) for name, value in row.items() if math.isfinite(value)},
        )
        for round, row in rows
    ]
