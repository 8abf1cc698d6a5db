"""What a row of the table is: contenders that are measured by turns, and what is read of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

EXECUTORS = ("inline", "graph", "ranks")
"""Where ours runs, a contender each."""

PEERS = "tests.benchmarks.peers"
SCRIPTS = "tests.benchmarks.table.scripts"


@dataclass(frozen=True)
class Contender:
    """A module that is run as a process and prints, as its last line, its readings as JSON.

    Its first argument is the file of the examples, then these. `environment` is a folder of `peers/` with
    requirements of its own; None is the project's environment.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None


@dataclass(frozen=True)
class Row:
    """A comparison. `readings` maps what contenders tell to what it is called, less being better.

    `exit` is the seconds until the process ended; nobody need tell it. `targets` are the ratios to stay below, by
    peer, of the first reading; of what has none it is 1.
    """

    name: str
    title: str
    readings: Mapping[str, str]
    peers: tuple[Contender, ...]
    ours: tuple[Contender, ...]
    examples: Callable[[str | None, Path], None]
    targets: Mapping[str, float] = field(default_factory=dict)

    def target(self, reading: str, peer: str) -> float:
        """The ratio to stay below in a reading, beside a peer."""
        return self.targets.get(peer, 1.0) if reading == next(iter(self.readings)) else 1.0

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """Peers and ours."""
        return *self.peers, *self.ours


def ours(script: str, *arguments: str) -> tuple[Contender, ...]:
    """A script of the project's own with each executor."""
    return tuple(Contender(name, f"{SCRIPTS}.{script}", (*arguments, name)) for name in EXECUTORS)
