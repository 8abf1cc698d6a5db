"""A run as its rounds see it: the work, which decides the bits, and the attempt, which does not."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from storage.rounds.commits import Commit
from storage.rounds.store import RoundStore, open_store
from storage.values.state import State
from tasks.algebra import Algorithm
from tasks.compute.compute import Compute
from tasks.compute.mapper import Mapper
from tasks.data.partitions import Partitions
from tasks.networks.objective import Objective
from tasks.numerics import Fingerprint, derive_seed
from tasks.rounds.plan import RoundPlan
from tasks.user_code import Code, WithCode
from tasks.when import Order


@dataclass(frozen=True)
class Work(WithCode):
    """What decides the bits of a round besides the state before it.

    `fingerprint` None accepts any machine, and an empty `source` any version of Roundweave.

    `code` is the user's code that its values are made of. So many rounds `before` the first, of another run, count
    for randomness, splits and schedules.
    """

    objective: Objective
    algorithm: Algorithm
    partitions: Partitions
    seed: int
    compute: Compute = field(default_factory=Compute)
    quorum: int = 1
    fingerprint: Fingerprint | None = None
    code: tuple[Code, ...] = ()
    before: int = 0
    source: str = ""

    @property
    def threads(self) -> int:
        """How many threads torch has in a map."""
        return self.compute.threads

    @property
    def mapper(self) -> Mapper:
        """What computes the map of partitions."""
        return self.compute.mapper(self.algorithm.map)

    def map_seed(self, turn: int, partition: int) -> int:
        """What a map's randomness is drawn from, by the partition's turn; of the reduce, -1, by the round."""
        return derive_seed(self.seed, self.before + turn, partition)

    def split(self, round: int) -> int:
        """The number of the split that a round uses."""
        return self.partitions.split.number(self.before + round)

    def counted(self, state: State) -> State:
        """A state as the algorithm sees it, with the rounds before."""
        return replace(state, round=self.before + state.round)

    def numbered(self, state: State) -> State:
        """A state that the algorithm gave, by its round of this run."""
        return replace(state, round=state.round - self.before)


@dataclass(frozen=True)
class Attempt:
    """One writer's go at a run: where it keeps the rounds, how far it goes, and when it ends early.

    `token` and `epoch` are of the lease; `started` is in seconds since the epoch. Of every `state_every`-th round
    the state is stored. `executor` is what runs the rounds.
    """

    store: str
    token: str
    epoch: int
    rounds: int
    evaluate_every: int = 1
    target_accuracy: float | None = None
    patience: int | None = None
    fsync: bool = False
    state_every: int = 1
    executor: str = ""
    started: float = field(default_factory=time.time)

    def open(self) -> RoundStore:
        """The run's store, opened once per process."""
        return open_store(self.store, self.token, self.fsync)

    def scored(self, round: int) -> bool:
        """Whether the network is scored after a round."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def stores_state(self, round: int) -> bool:
        """Whether the state of a round is stored, wherever its window ends; runs stop at scored rounds."""
        return round % self.state_every == 0 or self.scored(round)

    def stop_reason(self, commit: Commit) -> str | None:
        """Why the run ends with this round, None where it goes on."""
        accuracy = commit.score.accuracy if commit.score else None
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return f"accuracy {accuracy:.4f} has reached the target {self.target_accuracy}"
        if self.patience is not None and commit.since_best >= self.patience:
            return f"{commit.since_best} scores without a better loss than {commit.best:.6g}"
        return None


@dataclass(frozen=True)
class Job:
    """What an executor is given: the work, the attempt, and the plan of a round.

    `order` is the one in which updates arrive at a server where that is not left to the workers.
    """

    work: Work
    attempt: Attempt
    plan: RoundPlan
    order: Order | None = None

    @property
    def ranks(self) -> int:
        """How many processes work on one partition together."""
        return self.work.compute.ranks

    def split(self, round: int) -> int:
        """The number of the split that a round uses."""
        return self.work.split(round)

    def run_by(self, executor: str) -> Job:
        """The same, as an executor runs it."""
        return replace(self, attempt=replace(self.attempt, executor=executor))
