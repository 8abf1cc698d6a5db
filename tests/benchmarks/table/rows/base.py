"""What a row of the table is: contenders that are measured by turns, and what is read of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

EXECUTORS = ("inline", "graph", "ranks")
"""Where ours runs, a contender each."""

ALL, FEW = "all", "recompute:100"
KEEPS = (FEW, ALL)
"""What ours stores, a line of the table each."""

PEERS = "tests.benchmarks.peers"
SCRIPTS = "tests.benchmarks.table.scripts"


@dataclass(frozen=True)
class Contender:
    """A module that is run as a process and prints, as its last line, its readings as JSON.

    Its first argument is the file of the examples, then these. `environment` is a folder of `peers/` with
    requirements of its own; None is the project's environment. `executor` and `keep` are those of ours.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None
    executor: str = ""
    keep: str = ""


@dataclass(frozen=True)
class Row:
    """A comparison. `readings` maps what contenders tell to what it is called, less being better.

    `exit` is the seconds until the process ended; nobody need tell it. `targets` are the ratios to stay below, by
    what ours stores and by peer, for each of the readings; of what has none it is 1.
    """

    name: str
    title: str
    readings: Mapping[str, str]
    peers: tuple[Contender, ...]
    ours: tuple[Contender, ...]
    examples: Callable[[str | None, Path], None]
    targets: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    def target(self, reading: str, keep: str, peer: str) -> float:
        """The ratio to stay below in a reading, of what stores so much beside a peer."""
        targets = self.targets.get(keep, {}).get(peer, ())
        return dict(zip(self.readings, targets, strict=False)).get(reading, 1.0)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """Peers and ours."""
        return *self.peers, *self.ours


def ours(script: str, *arguments: str, keeps: Sequence[str] = KEEPS) -> tuple[Contender, ...]:
    """A script of the project's own with each executor, and storing so much."""
    return tuple(
        Contender(f"{name}, {keep}", f"{SCRIPTS}.{script}", (*arguments, name, keep), None, name, keep)
        for name in EXECUTORS
        for keep in keeps
    )
