"""What the command prints of a replay."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from flows.command.printing.console import console
from flows.evidence.replay_result import Replay
from storage.errors import listed
from tasks.evidence.results import RoundResult

SHOWN_ROUNDS = 20
"""So many rounds that differ are printed; `--json` has them all."""


def print_replay(replay: Replay) -> None:
    """How many rounds are identical, in what the others differ, and what is not as it was recorded."""
    out = console()
    count, differing = len(replay.replayed), replay.differing
    out.print(f"{replay.run}, round {listed(replay.replayed)}: ", style="bold", end="")
    if replay.identical:
        out.print("bit-identical", style="green")
    else:
        out.print(f"{len(differing)} of {count} differ", style="red")
        out.print(_table(differing))
    if replay.lacking:
        rounds = listed(result.round for result in replay.lacking)
        out.print(f"not replayed: round {rounds}; {replay.lacking[0].lacking}", style="yellow", soft_wrap=True)
    if replay.not_mapped:
        out.print(replay.not_mapped, style="yellow", soft_wrap=True)
    for name, what in replay.key.items():
        out.print(f"not as recorded: {name}: {what}", style="yellow", soft_wrap=True)


def _table(differing: Sequence[RoundResult]) -> Table:
    """The first tensor of each round that differs."""
    table = Table("round", "first that differs", "partition", "by up to", "", box=None, pad_edge=False)
    for result in differing[:SHOWN_ROUNDS]:
        difference = result.difference
        assert difference is not None
        partition = "–" if difference.partition is None else str(difference.partition)
        largest = "–" if difference.largest is None else f"{difference.largest:.6g}"
        table.add_row(str(result.round), difference.path, partition, largest, difference.said)
    if len(differing) > SHOWN_ROUNDS:
        table.add_row(f"and {len(differing) - SHOWN_ROUNDS} more")
    return table
