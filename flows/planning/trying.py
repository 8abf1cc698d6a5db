"""Strategies are tried: they do real rounds, timed and scored, in a root of their own that is deleted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from math import ceil, inf

from flows.config.resolving import Resolved, resolve, work_of
from flows.config.train import TrainConfig
from flows.planning.racing import Point
from flows.planning.strategies import Strategy
from flows.planning.workload import Workload
from flows.preparing.job import prepared
from storage.errors import RoundFailed
from storage.places.addresses import joined
from storage.places.schemes import place_of
from storage.rounds.commits import Commit, Score
from storage.values.state import State
from tasks.data.examples import Examples
from tasks.data.partitions import Partition
from tasks.executors.base import Executor
from tasks.persistence.committing import read_outcome
from tasks.rounds.job import Job, Work
from tasks.rounds.steps import judge_round, score_block

TRIAL = {"rounds": 100_000, "evaluate_every": 100_000, "keep": "all"}
"""Fields of a trial: more rounds than there is time for, which are scored only between turns."""

SCORED = 1000
"""The most held-out examples that strategies are compared on."""

WARM_UP = 0.05
"""Seconds after the first round of a turn that are not measured: examples are loaded, and ranks meet."""

FEW, TIMES, ENOUGH = 3, 2, 0.05
"""Local steps in the first rounds that are timed, rounds of each length, and seconds that steps take at least."""

START = 1e-3
"""Seconds until which nothing is learned; later the loss falls with the logarithm of time."""

FINE = 12
"""About this many earlier rounds of a racer of the last heat are scored besides."""


@dataclass
class Timing:
    """Mean seconds of a strategy's rounds and of their maps, without the rounds of a warm-up."""

    rounds: int = 0
    seconds: float = 0.0
    mapped: float = 0.0
    _first: float | None = None
    _last: float = 0.0

    def begin(self) -> None:
        """A turn begins."""
        self._first = None

    def tick(self, now: float, mapped: float) -> None:
        """A round is done, whose slowest map took `mapped` seconds."""
        if self._first is None:
            self._first = now
        elif now - self._first > WARM_UP:
            self.rounds += 1
            self.seconds += now - self._last
            self.mapped += mapped
        self._last = now

    @property
    def besides(self) -> float:
        """Seconds of a round besides its maps."""
        return max(0.0, self.seconds - self.mapped) / self.rounds

    def drawn_out(self, times: float) -> float:
        """Seconds of rounds of so many times as many steps: only the maps take as many times as long."""
        return self.besides + times * (self.seconds / self.rounds - self.besides)


@dataclass(frozen=True)
class Bench:
    """Where strategies are tried: executors by name on so many workers, and a root for their stores.

    `scoring` is work in one process that scores states on the held-out examples.
    """

    config: TrainConfig
    work: Workload
    executors: Mapping[str, Executor]
    workers: int
    root: str
    scoring: Work
    held_out: Partition

    def resolved(self, strategy: Strategy) -> Resolved:
        """The values of a trial of a strategy; raises `UsageError` where it cannot do the work."""
        name = strategy.name.replace(", ", "-").replace(" ", "-")
        return resolve(strategy.configured(self.config, self.work, **TRIAL, root=self.root, name=name))

    def score(self, state: State) -> Score:
        """How good a state is; raises `RoundFailed` where it has no loss."""
        score = judge_round(self.scoring, state.round, score_block(self.scoring, state, [self.held_out]))
        if score is None:
            raise RoundFailed("the loss on held-out examples is no finite number")
        return score

    @cached_property
    def start(self) -> Point:
        """Where all strategies begin."""
        return Point(START, self.score(self.scoring.objective.initial()).loss)

    def step_seconds(self, singles: Sequence[Strategy]) -> dict[str, float]:
        """Seconds of a step of each strategy of one process, in the quickest of some rounds of one run."""
        inline = self.executors["inline"]

        def stepping(single: Strategy, steps: int) -> Resolved:
            return self.resolved(replace(single.shortened(steps), algorithm=self.work.local))

        with prepared(stepping(singles[0], FEW), inline) as run:
            rounds = count(run.done + 1)

            def quickest(single: Strategy, steps: int) -> float:
                work = replace(work_of(stepping(single, steps), inline)[0], fingerprint=run.job.work.fingerprint)
                job = replace(run.job, work=work)
                commits = (commit for round in islice(rounds, TIMES) for commit in inline.run(job, round, round))
                return min(map(mapped, commits))

            quickest(singles[0], FEW)  # which loads the examples
            taken = {}
            for single in singles:
                steps = FEW
                while (seconds := quickest(single, steps)) < ENOUGH:
                    steps = ceil(1.5 * steps * ENOUGH / seconds)
                taken[single.name] = seconds / steps
        return taken


def mapped(commit: Commit) -> float:
    """Seconds of a round's slowest map."""
    return max((record.seconds for record in commit.updates.values()), default=0.0)


@dataclass
class Lane:
    """A strategy in the race, tried in rounds of so many `steps`: its own number, or fewer in one process."""

    bench: Bench
    strategy: Strategy
    steps: int
    rounds: int = 0
    timing: Timing = field(default_factory=Timing)
    scores: dict[int, Score] = field(default_factory=dict)

    @cached_property
    def resolved(self) -> Resolved:
        """The values of the trial; raises `UsageError` where the strategy cannot do the work."""
        own = self.steps == self.strategy.steps
        return self.bench.resolved(self.strategy if own else self.strategy.shortened(self.steps))

    def train(self, until: float) -> None:
        """Train for this many seconds in all, as the strategy takes them, and score what was learned by then.

        What is learned beyond the end of the run is not scored.
        """
        executor = self.bench.executors[self.strategy.executor]
        with prepared(self.resolved, executor) as run:
            self.rounds, seconds = run.done, None
            self.timing.begin()
            while not self.timing.rounds or self.rounds * self.worth < until:
                left = ceil(until / self.worth) - self.rounds if self.timing.rounds else 1
                last = self.rounds + max(1, min(left, run.window(seconds)))
                for commit in executor.run(run.job, self.rounds + 1, last):
                    self.timing.tick(time.perf_counter(), mapped(commit))
                    self.rounds, seconds = commit.round, commit.seconds
            executor.end()
            # Some rounds may be done by now that are beyond the turn.
            self._score(run.job, {min(self.rounds, self.whole, max(1, round(until / self.worth)))})

    def refine(self) -> None:
        """Score more of the rounds that were done, the more the earlier they are."""
        last = max(self.scores)
        with prepared(self.resolved, self.bench.executors[self.strategy.executor]) as run:
            self._score(run.job, {round(last ** (place / FINE)) for place in range(FINE)})

    def _score(self, job: Job, rounds: set[int]) -> None:
        for number in rounds - self.scores.keys():
            self.scores[number] = self.bench.score(read_outcome(job, number).state)

    @property
    def points(self) -> list[Point]:
        """What was learned in the seconds that the strategy takes for it."""
        scores = sorted(self.scores.items())
        later = (Point(rounds * self.worth, score.loss, score.accuracy) for rounds, score in scores)
        return [self.bench.start, *later]

    @property
    def curve(self) -> list[Point]:
        """The points; where the run is over by the last of them, its loss stays what it is."""
        points = self.points
        return [*points, Point(inf, points[-1].loss)] if self.whole in self.scores else points

    @property
    def whole(self) -> int:
        """The rounds of the whole run, as long as those that are tried; at least one."""
        work = self.bench.work
        return max(1, ceil(work.epochs * self.strategy.rounds(work) * self.strategy.steps / self.steps))

    @property
    def seconds(self) -> float:
        """Seconds of a round of the strategy."""
        return self.timing.drawn_out(self.strategy.steps / self.steps)

    @property
    def worth(self) -> float:
        """Seconds that the strategy takes for what is learned in a round that is tried."""
        return self.seconds * self.steps / self.strategy.steps


@contextmanager
def trial_root(root: str) -> Iterator[str]:
    """A root for trials, inside another; it is deleted at the end."""
    trials = joined(root, f".trials-{secrets.token_hex(4)}")
    place = place_of(trials)
    place.make()
    try:
        yield trials
    finally:
        place.delete("")


def thinned(held_out: Examples) -> Examples:
    """At most `SCORED` of the held-out examples, evenly spread."""
    every = ceil(len(held_out) / SCORED)
    return Examples(held_out.inputs[::every], held_out.targets[::every])
