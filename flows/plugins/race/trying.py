"""Tries strategies: runs real rounds in a temporary root, and measures their times and scores."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import Plan, plan_rounds
from roundweave.flows.plugins.race.racing import Point
from roundweave.flows.plugins.race.strategies import Strategy, Workload
from roundweave.flows.stored import open_run
from roundweave.flows.training.job import prepare
from roundweave.storage.errors import RoundFailed
from roundweave.storage.places.base import join_address
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.state import State
from roundweave.tasks.data.loading import AnyExamples, Partition
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.rounds.job import Job, Work
from roundweave.tasks.rounds.persistence.outcomes import read_outcome
from roundweave.tasks.rounds.steps import judge_round, map_together, score_block

TRIAL = {"rounds": 100_000, "evaluate_every": 100_000, "keep": "all"}
"""Fields of a trial's configuration: more rounds than there is time for, scored only between heats.

A trial ends before it has stored so many, so its disk need not hold them.
"""

SCORED = 1000
"""The most held-out examples that strategies are compared on."""

WARM_UP = 0.05
"""Seconds after a heat's first round that are not measured, as examples are loaded and ranks connect."""

FEW, TIMES, ENOUGH = 3, 2, 0.05
"""For timing steps: the local steps of the first maps, the maps of each length, and their least seconds."""

START = 1e-3
"""The time of a curve's first point, above 0 as the loss is interpolated over the logarithm of time."""

FINE = 12
"""About this many earlier rounds are scored, too, for each strategy of the last heat."""


@dataclass
class TrialTiming:
    """Measures the seconds of a strategy's rounds and of their maps, without those of the warm-up."""

    rounds: int = 0
    seconds: float = 0.0
    mapped: float = 0.0
    _first: float | None = None
    _last: float = 0.0

    def begin(self) -> None:
        """Begin a heat, whose first rounds count as warm-up."""
        self._first = None

    def tick(self, now: float, mapped: float) -> None:
        """Count a round that ended at time `now` and whose slowest map took `mapped` seconds."""
        if self._first is None:
            self._first = now
        elif now - self._first > WARM_UP:
            self.rounds += 1
            self.seconds += now - self._last
            self.mapped += mapped
        self._last = now

    def drawn_out(self, times: float) -> float:
        """The mean seconds of a round with `times` as many local steps, which only make its maps longer."""
        maps = min(self.seconds, self.mapped)
        return (self.seconds - maps + times * maps) / self.rounds


@dataclass(frozen=True)
class Bench:
    """Where strategies are tried: executors by name on so many workers, and a root for their stores.

    `scoring` is work in one process that scores states on the held-out ones of the `examples`.
    """

    config: TrainConfig
    work: Workload
    executors: Mapping[str, Executor]
    workers: int
    root: str
    scoring: Work
    examples: Partition

    def plan(self, strategy: Strategy) -> Plan:
        """The plan of a strategy's trial; raises `UsageError` if it cannot do the work."""
        name = strategy.name.replace(", ", "-").replace(" ", "-")
        config = strategy.configured(self.config, self.work, **TRIAL, root=self.root, name=name)
        return plan_rounds(config, opened=open_run)

    def score(self, state: State) -> Score:
        """The held-out score of a state; raises `RoundFailed` if its loss is not finite."""
        score, _ = judge_round(
            self.scoring, state.round, score_block(self.scoring, state, {0: self.examples.scored})
        )
        if score is None:
            raise RoundFailed("the loss on held-out examples is no finite number")
        return score

    @cached_property
    def start(self) -> Point:
        """The point at which all strategies begin: the loss of the initial state."""
        return Point(START, self.score(self.scoring.objective.initial()).loss)

    def step_seconds(self, single: Strategy) -> float:
        """The seconds of a step of a strategy of one process, in the quickest of some maps.

        Raises `RoundFailed` if the map fails.
        """
        state, steps = self.scoring.objective.initial(), FEW
        while True:
            plan = self.plan(replace(single.shortened(steps), algorithm=self.work.local))
            work = describe(plan, self.executors[single.executor].gather).work
            state = replace(state, memory=work.algorithm.apply.init(state.params))
            seconds = inf
            for number in range(1, TIMES + 1):
                began = time.perf_counter()
                [update] = map_together(work, state, number, [(0, self.examples, {})])
                seconds = min(seconds, time.perf_counter() - began)
                if update.refused:
                    raise RoundFailed(update.refused)
            if seconds >= ENOUGH:
                return seconds / steps
            steps = ceil(1.5 * steps * ENOUGH / seconds)


@dataclass
class Lane:
    """A strategy in the race. It is tried in rounds of `steps` local steps: its own number, or fewer."""

    bench: Bench
    strategy: Strategy
    steps: int
    rounds: int = 0
    timing: TrialTiming = field(default_factory=TrialTiming)
    scores: dict[int, Score] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Plan:
        """The plan of the trial; raises `UsageError` if the strategy cannot do the work."""
        own = self.steps == self.strategy.steps
        return self.bench.plan(self.strategy if own else self.strategy.shortened(self.steps))

    def train(self, until: float) -> None:
        """Train until the strategy has trained for this many seconds in all, and score its state then.

        Rounds beyond the end of the run are not scored.
        """
        executor = self.bench.executors[self.strategy.executor]
        with prepare(self.plan, executor, must_fit=False) as run:
            self.rounds, seconds = run.done, None
            self.timing.begin()
            while not self.timing.rounds or self.rounds * self.worth < until:
                left = ceil(until / self.worth) - self.rounds if self.timing.rounds else 1
                last = self.rounds + max(1, min(left, run.window(seconds)))
                for commit in executor.run(run.job, self.rounds + 1, last):
                    slowest = max((record.seconds for record in commit.updates.values()), default=0.0)
                    self.timing.tick(time.perf_counter(), slowest)
                    self.rounds, seconds = commit.round, commit.seconds
            executor.end()
            # The last window may have gone beyond the end of the heat, at which the state is scored.
            self._score(run.job, {min(self.rounds, self.whole, max(1, round(until / self.worth)))})
        self.plan = replace(self.plan, run=StoredRun(self.plan.address))  # later heats go on with it

    def refine(self) -> None:
        """Score about `FINE` earlier rounds of the strategy, more of them near the start than near the end."""
        last = max(self.scores)
        with prepare(self.plan, self.bench.executors[self.strategy.executor], must_fit=False) as run:
            self._score(run.job, {round(last ** (place / FINE)) for place in range(FINE)})

    def _score(self, job: Job, rounds: set[int]) -> None:
        for number in rounds - self.scores.keys():
            self.scores[number] = self.bench.score(read_outcome(job, number).state)

    @property
    def points(self) -> list[Point]:
        """The scored rounds as points, with the seconds that the strategy itself would take for them."""
        scores = sorted(self.scores.items())
        later = (Point(rounds * self.worth, score.loss, score.accuracy) for rounds, score in scores)
        return [self.bench.start, *later]

    @property
    def curve(self) -> list[Point]:
        """The points; if the last is the end of the run, its loss holds for all later times."""
        points = self.points
        return [*points, Point(inf, points[-1].loss)] if self.whole in self.scores else points

    @property
    def whole(self) -> int:
        """The number of rounds of the whole run if they have as many steps as those tried; at least 1."""
        work = self.bench.work
        return max(1, ceil(work.epochs * self.strategy.rounds(work) * self.strategy.steps / self.steps))

    @property
    def seconds(self) -> float:
        """The seconds of a round with the strategy's own number of steps."""
        return self.timing.drawn_out(self.strategy.steps / self.steps)

    @property
    def worth(self) -> float:
        """The seconds that the strategy itself would take for the steps of a round that is tried."""
        return self.seconds * self.steps / self.strategy.steps


@contextmanager
def trial_root(root: str) -> Iterator[str]:
    """Make a temporary root for trials inside another root, and delete it at the end."""
    trials = join_address(root, f".trials-{secrets.token_hex(4)}")
    place = place_of(trials)
    place.make()
    try:
        yield trials
    finally:
        place.delete("")


def thinned(held_out: AnyExamples) -> AnyExamples:
    """At most `SCORED` of the held-out examples, evenly spread."""
    return held_out.every(ceil(len(held_out) / SCORED))
