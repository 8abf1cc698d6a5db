"""``run.score``: the network of a stored round, scored on other data, or again on what its run holds out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from roundweave.flows.config.base import EachOwn, NamedOrOwn, Names
from roundweave.flows.config.recorded import check_examples
from roundweave.flows.config.train import ExecutorName
from roundweave.flows.evidence.opening import OfRun, described_again, plan_again
from roundweave.flows.evidence.replaying import other_network
from roundweave.flows.planning.completing import scored_alone
from roundweave.flows.planning.describing import may_own_loss, objective_for
from roundweave.flows.serving.ahead import started
from roundweave.storage.errors import DataError, ModelError, NotARun, UsageError, failing_as
from roundweave.storage.parsing import parse
from roundweave.storage.places.base import full_address
from roundweave.storage.rounds.commits import Score
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.names import WhichRound
from roundweave.storage.runs.round import Round
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.data.description import Description
from roundweave.tasks.networks.scores import SCORES
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.persistence.committing import score_again
from roundweave.tasks.rounds.persistence.outcomes import outcome_of, supply
from roundweave.tasks.rounds.scorers import described_with
from roundweave.tasks.rounds.steps import Outcome


class ScoreConfig(OfRun):
    """Which stored round to score, and on what: all examples of the data, or those that they hold out themselves.

    Raises:
        UsageError: A value is wrong, or there is no such field; the line names the nearest.
    """

    round: WhichRound = Field(default="last", description="round to score: a number, last or best")
    data: NamedOrOwn | EachOwn | None = Field(
        default=None, description="examples, named as in `roundweave train --data`; default: the held-out examples"
    )
    target: str | None = Field(default=None, description="column of a table to predict; default: as in training")
    held_out_transform: NamedOrOwn | None = Field(default=None, description="FILE.py:fn; default: as in training")
    collate: NamedOrOwn | None = Field(default=None, description="FILE.py:fn of a batch; default: as in training")
    scores: Names | None = Field(default=None, description=f"{', '.join(SCORES)}, FILE.py:fn; default: as trained")
    device: str | None = Field(default=None, description="device: cpu, cuda, …; default: as in training")
    executor: ExecutorName = Field(default="inline", description="executor of the scoring")

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of the recorded configuration in whose place others are given."""
        names = ("data", "held_out_transform", "collate", "scores", "device")
        return {name: given for name in names if (given := getattr(self, name)) is not None}

    @property
    def named(self) -> str:
        """What messages call the examples."""
        every = self.data if isinstance(self.data, tuple) else (self.data or "held out",)
        return ", ".join(one if isinstance(one, str) else one.reference for one in every)


@dataclass(frozen=True)
class RoundScore:
    """The score of a round's network on the examples of `data`, whose digest is `data_digest`."""

    run: str
    round: int
    data: str
    data_digest: str
    score: Score

    def summary(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        values = {"loss": self.score.loss, "scores": dict(self.score.values)}
        counts = {"examples": self.score.examples, "left_out": self.score.left_out}
        return {name: value for name, value in vars(self).items() if name != "score"} | values | counts


def score_round(config: ScoreConfig, run: StoredRun) -> RoundScore:
    """Score the network of a run's stored round, without Prefect, with the executor `inline` also without Dask.

    Raises `RoundweaveError` if the examples, the network or the scores do not fit one another, or cannot be had.
    """
    round, own = run.round(config.round), config.data is None
    score, description = (_on_held_out if own else _on_other)(config, run, round)
    if score is None:
        raise DataError(f"no loss is finite: {run.name} on {description.held_out} examples of {config.named}")
    return RoundScore(run.name, round.number, config.named, description.digest, score)


def _on_held_out(config: ScoreConfig, run: StoredRun, round: Round) -> tuple[Score | None, Description]:
    """Return the score on the examples that the run holds out, which are checked, and their description."""
    with described_again(plan_again(run, config), config) as (described, executor):
        work, description = described.work, described.description
        check_examples(run, description.recorded)
        if not description.held_out:
            raise UsageError(f"{run.name} holds out no examples; give --data to score it on")
        store = supply(work, RoundStore(full_address(run.address)))
        _check_network(run, work, round)
        return score_again(work, outcome_of(work, store, round.number), executor.gather, store), description


def _on_other(config: ScoreConfig, run: StoredRun, round: Round) -> tuple[Score | None, Description]:
    """Return the score on all examples of other data, and their description.

    Raises `DataError` if they are not like those that the run was trained on, as partitions must be.
    """
    with failing_as(lambda error: NotARun(f"{run.address}: its record of the data is damaged: {error}")):
        known = parse(Description, json.dumps(run.attributes["data"]))
    assert config.data is not None
    planned = plan_again(run, config, data=run.config["data"])
    training = planned.config
    called = (f"run {run.name}", config.named).__getitem__
    other = scored_alone(training, config.data, config.target)
    with started(config, store=full_address(run.address)) as executor:
        partitions, found, both = described_with(known, other, called, executor.gather)
        objective = objective_for(training, known)
        objective = check_fit(objective, partitions, both, 0, may_own_loss(training))
        how = (training.seed, training.threads, planned.mapper.bound(objective, partitions))
        work = Work(objective, planned.algorithm, partitions, *how)
        _check_network(run, work, round)
        return score_again(work, Outcome(round.state), executor.gather), found


def _check_network(run: StoredRun, work: Work, round: Round) -> None:
    """Raise `ModelError` if the network that the recorded code builds now is not the one that is stored."""
    if differing := other_network(RoundStore(run.address), work, [round.number]):
        raise ModelError(f"{run.name} cannot be scored: {differing[0].difference}")
