"""Strategies tried: real rounds in a root of their own, which is deleted, timed and scored."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from math import ceil

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
"""What a trial has of its own: more rounds than there is time for, which are scored between its turns only."""

SCORED = 1000
"""Held-out examples that tell how much is learned: all strategies have the same."""

WARM_UP = 0.05
"""Seconds after the first round of a turn, which are not measured: examples are loaded, and ranks meet."""

FITTING = 3
"""So many rounds fit into a turn at least, else shorter ones are tried."""

FEW, TIMES, ENOUGH = 3, 2, 0.05
"""Local steps of rounds that time a step, so many such rounds, and seconds that their steps take at least."""


START = 1e-3
"""Seconds after which nothing is learned yet: from there on the loss falls as time grows by factors."""

FINE = 12
"""So many rounds of who was in the last heat are scored besides."""


@dataclass
class Timing:
    """Seconds of a round, and of its maps, of a strategy that is tried: the mean without those of a warm-up."""

    rounds: int = 0
    seconds: float = 0.0
    mapped: float = 0.0
    _first: float | None = None
    _last: float = 0.0

    def begin(self) -> None:
        """A turn begins."""
        self._first = None

    def tick(self, now: float, mapped: float) -> None:
        """A round is done, whose slowest map took so long."""
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
        """Seconds of rounds of so many times as many steps: maps take so many times as long, the rest does not."""
        return self.besides + times * (self.seconds / self.rounds - self.besides)


@dataclass(frozen=True)
class Bench:
    """Where strategies are tried: executors by name on so many workers, and a root.

    Work in one process is `scoring` states on the held-out examples.
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
        """Seconds of a step of strategies of one process: of the quickest of some rounds of one run."""
        with prepared(self._stepping(singles[0], FEW), self.executors["inline"]) as run:
            rounds = count(run.done + 1)
            self._quickest(run.job, singles[0], FEW, rounds)  # which loads the examples
            taken = {}
            for single in singles:
                steps = FEW
                while (seconds := self._quickest(run.job, single, steps, rounds)) < ENOUGH:
                    steps = ceil(1.5 * steps * ENOUGH / seconds)
                taken[single.name] = seconds / steps
        return taken

    def _stepping(self, single: Strategy, steps: int) -> Resolved:
        return self.resolved(replace(single.shortened(steps), algorithm=self.work.local))

    def _quickest(self, job: Job, single: Strategy, steps: int, rounds: Iterator[int]) -> float:
        """Seconds of the map in the quickest of some rounds of so many steps."""
        inline = self.executors["inline"]
        work, _ = work_of(self._stepping(single, steps), inline)
        job = replace(job, work=replace(work, fingerprint=job.work.fingerprint))
        return min(mapped(commit) for round in islice(rounds, TIMES) for commit in inline.run(job, round, round))


def mapped(commit: Commit) -> float:
    """Seconds of a round's slowest map."""
    return max((record.seconds for record in commit.updates.values()), default=0.0)


@dataclass
class Lane:
    """A strategy in the race.

    In one process, where a `step` takes so many seconds, it is tried in shorter rounds if few of its own fit into
    its first turn: it learns the same.
    """

    bench: Bench
    strategy: Strategy
    step: float | None = None
    steps: int = 0
    rounds: int = 0
    timing: Timing = field(default_factory=Timing)
    scores: dict[int, Score] = field(default_factory=dict)
    _resolved: Resolved | None = None

    def train(self, until: float) -> None:
        """Train for so many seconds in all, at the strategy's own pace, and score what was learned by then."""
        if self._resolved is None:
            self.steps = own = self.strategy.steps
            if self.step is not None:
                self.steps = min(own, max(1, int(until / FITTING / self.step)))
            tried = self.strategy if self.steps == own else self.strategy.shortened(self.steps)
            self._resolved = self.bench.resolved(tried)
        executor = self.bench.executors[self.strategy.executor]
        with prepared(self._resolved, executor) as run:
            self.rounds, seconds = run.done, None
            self.timing.begin()
            while not self.timing.rounds or self.trained < until:
                left = ceil((until - self.trained) / self.worth) if self.timing.rounds else 1
                last = self.rounds + max(1, min(left, run.window(seconds)))
                for commit in executor.run(run.job, self.rounds + 1, last):
                    self.timing.tick(time.perf_counter(), mapped(commit))
                    self.rounds, seconds = commit.round, commit.seconds
            executor.end()
            # Some rounds may be done by now that are beyond the turn.
            then = min(self.rounds, max(1, round(until / self.worth)))
            self.scores[then] = self.bench.score(read_outcome(run.job, then).state)

    def refine(self) -> None:
        """Score more of the rounds that it has done, the more the earlier they are."""
        assert self._resolved is not None
        between = {round(self.rounds ** (place / FINE)) for place in range(FINE)}
        with prepared(self._resolved, self.bench.executors[self.strategy.executor]) as run:
            for number in between - self.scores.keys():
                self.scores[number] = self.bench.score(read_outcome(run.job, number).state)

    @property
    def curve(self) -> list[Point]:
        """What was learned by what the strategy takes for it."""
        scores = sorted(self.scores.items())
        return [
            self.bench.start,
            *(Point(rounds * self.worth, score.loss, score.accuracy) for rounds, score in scores),
        ]

    @property
    def seconds(self) -> float:
        """Seconds of a round of the strategy."""
        return self.timing.drawn_out(self.strategy.steps / self.steps)

    @property
    def worth(self) -> float:
        """Seconds that the strategy takes for what is learned in a round that is tried."""
        return self.seconds * self.steps / self.strategy.steps

    @property
    def trained(self) -> float:
        """Seconds that the strategy takes for what was learned."""
        return self.rounds * self.worth


@contextmanager
def trial_root(root: str) -> Iterator[str]:
    """A root for trials beside the runs of another; what is in it is deleted."""
    trials = joined(root, f".trials-{secrets.token_hex(4)}")
    place = place_of(trials)
    place.make()
    try:
        yield trials
    finally:
        place.delete("")


def thinned(held_out: Examples) -> Examples:
    """So many of the held-out examples, from the first to the last."""
    every = ceil(len(held_out) / SCORED)
    return Examples(held_out.inputs[::every], held_out.targets[::every])
