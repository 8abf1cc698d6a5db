"""Scores the network that holds an alias on the examples of a run that wants it."""

from __future__ import annotations

from dataclasses import replace

from roundweave.flows.config.recorded import check_examples
from roundweave.flows.evidence.opening import OfRun, recorded_training
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan_rounds
from roundweave.flows.serving.ahead import started
from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import DataError, NotARun
from roundweave.storage.places.base import full_address
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.names import Holding, run_address
from roundweave.storage.runs.round import Round
from roundweave.tasks.data.meaning import Meaning
from roundweave.tasks.networks.start import Fork, find_fork
from roundweave.tasks.rounds.persistence.committing import score_again
from roundweave.tasks.rounds.steps import Outcome

NETWORK = ("model", "model_options", "dtype", "transform", "held_out_transform", "collate")
"""The options that decide what a network is, and how its inputs are prepared."""


def champion_of(run: Run, holding: Holding) -> Round:
    """The round that holds an alias, scored on the examples that a run is scored on.

    Of a run that began with this very round it is round 0. Raises `RoundweaveError` where the networks take other
    examples, or where the examples of the run are gone.
    """
    parent = run.attributes.get("parent") or {"chain": ""}
    if parent["chain"] == holding.chain and "changed" not in parent:
        return run.round(0)
    address = run_address(run.root, str(holding.run))
    held = Run(address, run.root, holding.round).round("last")
    if holding.chain not in (None, held.chain):
        raise NotARun(f"{holding.run}@{holding.round} is another round now")
    return held.scored(_score(run, find_fork(open_run(address), held.number, open_run)))


def _score(run: Run, start: Fork) -> Score | None:
    """The score that round 0 would have if the run had begun with another one's round and network."""
    where = OfRun(run=full_address(run.address), root=str(run.root), executor="inline")
    network = {name: start.run().config[name] for name in NETWORK}
    mine, known = Meaning.recorded(run.attributes["data"]), start.meaning.class_names
    if other := [name for name in mine.class_names if name not in known]:
        raise DataError(f"it knows no label {other[0]!r}, but {', '.join(known) or 'numbers'}")
    plan = plan_rounds(recorded_training(run, where, start_from=start, **network), opened=open_run)
    with started(where, plan.placement) as executor:
        described = describe(plan, executor.gather)
        own = described.description
        if own.meaning != mine:  # its examples are put in the order of the other one
            own = describe(
                plan_rounds(recorded_training(run, where), opened=open_run), executor.gather
            ).description
        check_examples(run, own.recorded)
        state = replace(start.state(described.objective), memory={}, round=0)
        return score_again(described.work, Outcome(state), executor.gather)
