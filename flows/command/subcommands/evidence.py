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
from roundweave.flows.terminal.common import Json, Root, RunName, TextTable, console, output, run_names, say
from roundweave.flows.terminal.options import with_options
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import named_round
from roundweave.tasks.rounds.evidence.recombining import Recombination


@with_options(ReplayConfig, without=("run", "rounds", "name"))
def replay_command(
    run: RunName,
    round: Annotated[int | None, typer.Option(help="round number, negative from the end; default: last")] = None,
    all_rounds: Annotated[bool, typer.Option("--all", help="every round; takes as long as training")] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Compute stored rounds again, and check that the results have the recorded bits. Nothing is written.

    Without --round, --all or --sample, the last round is replayed. For a round that differs, the command names the
    first tensor that differs, the largest difference, and any change of hardware, code, data or versions.

    Exit codes: 0 if all rounds are bit-identical; 1 if a round differs; 3 if one of these changed, too.
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
    every: Annotated[bool, typer.Option("--all", help="every round, from the stored state before it")] = False,
    save: Annotated[
        str | None, typer.Option(help="name of a new run that begins with the recombined round")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Aggregate stored updates again, without training, and compare the results with the recorded rounds."""
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
        say(f"saved in {result.saved}; next: `roundweave resume` trains on from there")


@with_options(ScoreConfig, without=("run", "round", "name"))
def score_command(
    round: Annotated[str, typer.Argument(help="round: RUN@12, RUN@best or RUN@last", autocompletion=run_names)],
    as_json: Json = False,
    **options: Any,
) -> None:
    """Score the network of a stored round on other data, or again on its held-out examples. Nothing is written.

    Data with a test set are scored on the test set alone, other data on all examples.
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
    run_a: Annotated[str, typer.Argument(help="name or address of a run", autocompletion=run_names)],
    run_b: Annotated[str, typer.Argument(help="name or address of another run", autocompletion=run_names)],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show the first difference between two runs: option, round, tensor. Exit codes: 0 if equal, 1 if not."""
    difference = diff(run_a, run_b, root)
    output(as_json, difference.summary(), say, *difference.lines)
    sys.exit(0 if difference.equal else FAILED)
