"""`roundweave replay`, `roundweave recombine` and `roundweave diff`: what stored rounds are evidence of."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.command.arguments import Json, Root, RunName, Trust
from flows.command.errors import FAILED, clear_errors, print_json
from flows.command.options import given, with_options
from flows.command.printing.evidence_tables import print_difference, print_recombination
from flows.command.printing.replay_tables import print_replay
from flows.command.printing.timing import quiet
from flows.config.train import Placement
from flows.evidence.differing import diff
from flows.evidence.recombining import RecombineConfig
from flows.evidence.replay_result import Replay
from flows.evidence.replaying import ReplayConfig, Replaying
from storage.errors import UsageError
from storage.runs.names import WhichRound, which_round
from tasks.evidence.recombining import Recombination


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
    from flows.evidence.replaying import replay

    return replay(config)


@with_options(RecombineConfig, without=("run", "round", "name", "trust"))
def recombine_command(
    run: RunName,
    round: Annotated[str | None, typer.Option(help="the round: its number, last or best")] = None,
    every: Annotated[bool, typer.Option("--all", help="all rounds, each from the stored state before it")] = False,
    save: Annotated[
        str | None, typer.Option(help="name of a new run that begins with the recombined round")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Reduce stored rounds again, without training, and compare with what they were."""
    with clear_errors(as_json):
        place: dict[str, Any] = {"run": run, "round": _asked(round, every), "name": save, "trust": trust}
        result = _recombine(RecombineConfig(**place, **given(options, RecombineConfig)))
        if as_json:
            print_json(result.summary())
        else:
            print_recombination(result)


def _asked(round: str | None, every: bool) -> WhichRound | None:
    if every == (round is not None):
        raise UsageError("which rounds? give --round R, or --all")
    return None if round is None else which_round(round)


def _recombine(config: RecombineConfig) -> Recombination:
    quiet()
    from flows.evidence.recombining import recombine

    with Console(stderr=True).status("reducing again"):
        return recombine(config)


def diff_command(
    run_a: Annotated[str, typer.Argument(help="a run's name, or its address")],
    run_b: Annotated[str, typer.Argument(help="another's")],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Say where two runs first differ: field, round, tensor. Exit code 0 where they are equal, 1 where not."""
    with clear_errors(as_json):
        difference = diff(run_a, run_b, root)
        if as_json:
            print_json(difference.summary())
        else:
            print_difference(difference)
    sys.exit(0 if difference.equal else FAILED)
