"""`roundweave replay`, `roundweave recombine` and `roundweave diff`: check and compare stored rounds."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from roundweave.flows.command.errors import FAILED
from roundweave.flows.evidence.differing import diff
from roundweave.flows.evidence.recombining import RecombineConfig
from roundweave.flows.evidence.replaying import ReplayConfig
from roundweave.flows.evidence.scoring import RoundScore, ScoreConfig, score_round
from roundweave.flows.stored import open_run
from roundweave.flows.terminal.common import Json, Root, RunName, TextTable, console, output, say
from roundweave.flows.terminal.options import with_options
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import named_round
from roundweave.tasks.rounds.evidence.recombining import Recombination


@with_options(ReplayConfig, without=("run", "rounds", "name"))
def replay_command(
    run: RunName,
    round: Annotated[int | None, typer.Option(help="one round, negative from the end; default: the last")] = None,
    all_rounds: Annotated[bool, typer.Option("--all", help="every round, in the time of training")] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Compute stored rounds again, and say whether they have the bits that were committed; nothing is written.

    Without --round, --all or --sample it is the last round. Of a round that differs, the first tensor that does is
    named, its largest difference, and what is not as recorded: fingerprint, code, data, versions. Exit code 0: all
    rounds are bit-identical; 1: one differs, and nothing else does; 3: one differs, and so does what is named.
    """
    if round is not None and all_rounds:
        raise UsageError("choose --round, --all or --sample: one of the three")
    rounds: Any = "all" if all_rounds else "last" if round is None else (round,)
    config = ReplayConfig(run=run, rounds=rounds, **options)
    from roundweave.flows.evidence.replaying import replay

    result = replay(config)
    output(as_json, result.summary(), say, *result.lines)
    sys.exit(result.exit_code)


@with_options(RecombineConfig, without=("run", "name"))
def recombine_command(
    run: RunName,
    every: Annotated[bool, typer.Option("--all", help="all rounds, each from the stored state before it")] = False,
    save: Annotated[
        str | None, typer.Option(help="name of a new run that begins with the recombined round")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Reduce stored rounds again, without training, and compare with what they were."""
    if every == ("round" in options):
        raise UsageError("no round is named; give --round R, or --all")
    config = RecombineConfig(run=run, name=save, **options)
    from roundweave.flows.evidence.recombining import recombine

    with console(stderr=True).status("reducing again"):
        result = recombine(config)
    output(as_json, result.summary(), _print_recombination, result)


def _print_recombination(result: Recombination) -> None:
    """Print a row for each round: each new score beside the recorded one."""
    rows = [round.row() for round in result.rounds]
    before = {name: None for row in rows for name in row if f"{name}_before" in row}
    names = [column for name in before for column in (name, f"{name}_before")]
    bits = {True: "the same bits", False: "other bits"}
    shown = ({"round": row["round"], **{name: row.get(name) for name in names}} for row in rows)
    states = ({"new state": bits[row["identical"]]} for row in rows)
    console().print(TextTable([numbers | state for numbers, state in zip(shown, states, strict=True)]))
    if result.saved:
        say(f"kept in {result.saved}; `roundweave resume` goes on from there")


@with_options(ScoreConfig, without=("run", "round", "name"))
def score_command(
    round: Annotated[str, typer.Argument(help="a round: RUN@12, RUN@best or RUN@last")],
    as_json: Json = False,
    **options: Any,
) -> None:
    """Score the network of a stored round on other data, or again on what was held out; nothing is written.

    All examples of the data are scored, or those that the data hold out themselves.
    """
    run, which = named_round(round)
    config = ScoreConfig(run=run, round=which, **options)
    result = score_round(config, open_run(run, config.root, trust=config.trust))
    output(as_json, result.summary(), _print_score, result)


def _print_score(result: RoundScore) -> None:
    """Print a row of the scores, and what they are of."""
    console().print(TextTable([{"round": result.round, **result.score.row()}]))
    say(f"{result.run} on {result.data}, digest {result.data_digest[:16]}")


def diff_command(
    run_a: Annotated[str, typer.Argument(help="a run's name, or its address")],
    run_b: Annotated[str, typer.Argument(help="another's")],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Say where two runs first differ: field, round, tensor. Exit code 0 where they are equal, 1 where not."""
    difference = diff(run_a, run_b, root)
    output(as_json, difference.summary(), say, *difference.lines)
    sys.exit(0 if difference.equal else FAILED)
