"""`roundweave replay`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from flows.command.arguments import Json, RunName, Trust
from flows.command.errors import clear_errors, print_json
from flows.command.options import given, with_options
from flows.command.printing.replay_tables import print_replay
from flows.command.printing.timing import quiet
from flows.config.train import Placement
from flows.evidence.replay.config import ReplayConfig, Replaying
from flows.evidence.replay.result import Replay
from storage.errors import UsageError


@with_options(Replaying, Placement, without=("name",))
def replay_command(
    run: RunName,
    round: Annotated[int | None, typer.Option(help="one round, negative from the end; default: the last")] = None,
    all_rounds: Annotated[bool, typer.Option("--all", help="every round, in the time of training")] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="so many rounds, evenly spread")] = None,
    trust: Trust = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Compute stored rounds again, and say whether they have the bits that were committed; nothing is written.

    Without --round, --all or --sample it is the last round. Of a round that differs, the first tensor that does is
    named, its largest difference, and what is not as recorded: fingerprint, code, data, versions. Exit code 0: all
    rounds are bit-identical; 1: one differs, and nothing else does; 3: one differs, and so does what is named.
    """
    with clear_errors(as_json):
        values = given(options, Replaying, Placement)
        rounds = _rounds(round, all_rounds)
        replay = _replay(ReplayConfig(run=run, rounds=rounds, sample=sample, trust=trust, **values))
        if as_json:
            print_json(replay.summary())
        else:
            print_replay(replay)
    sys.exit(replay.exit_code)


def _rounds(round: int | None, all_rounds: bool) -> Any:
    if round is not None and all_rounds:
        raise UsageError("choose --round, --all or --sample: one of the three")
    return "all" if all_rounds else "last" if round is None else (round,)


def _replay(config: ReplayConfig) -> Replay:
    quiet()
    from flows.evidence.replay.running import replay

    return replay(config)
