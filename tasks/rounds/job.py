"""What rounds need to know of a run: the work, which decides bits, and the attempt, which does not."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.store import RoundStore, open_store
from roundweave.storage.upkeep.keep import All, Keep
from roundweave.storage.values.state import State
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.topology import Topology
from roundweave.tasks.algorithms.when import Order
from roundweave.tasks.compute.compute import Compute
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.numerics.fingerprints import Fingerprint
from roundweave.tasks.numerics.pinning import derive_seed
from roundweave.tasks.own_code.code import Code, WithCode
from roundweave.tasks.rounds.plan import RoundPlan


@dataclass(frozen=True)
class Work(WithCode):
    """All that decides the bits of a round, besides the state before it.

    A `fingerprint` of None accepts any machine, and an empty `source` any version of Roundweave. `code` is the
    user's code in the other fields. `before` is the number of rounds of an earlier run that this one goes on from:
    randomness, splits and schedules count them. `quorum` is how many sound updates a round needs. `topology` says
    whose networks are averaged where each partition has its own.
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
    topology: Topology | None = None

    @property
    def threads(self) -> int:
        """How many threads torch uses in a map."""
        return self.compute.threads

    @property
    def mapper(self) -> Mapper:
        """The object that maps partitions: one by one, stacked, or on several ranks."""
        return self.compute.mapper(self.algorithm.map)

    def map_seed(self, number: int, partition: int) -> int:
        """The seed of a map, from the number of its round, or of its push if the run is asynchronous.

        The reduce of a round has -1 for its `partition`.
        """
        return derive_seed(self.seed, self.before + number, partition)

    def split(self, round: int) -> int:
        """The number of the split that a round uses, from 0."""
        return self.partitions.split.number(self.before + round)

    @property
    def rotating(self) -> bool:
        """Whether a parameter server has a cohort, whose partitions give way to others."""
        return self.partitions.cohort is not None and self.algorithm.when.asynchronous

    def cohort(self, round: int) -> tuple[int, ...] | None:
        """The partitions that take part in a round, ascending; None: all. Of a server it is the first cohort."""
        return self.partitions.cohort_of(self.before + (0 if self.rotating else round))

    def counted(self, state: State) -> State:
        """A state whose round counts the rounds of the earlier run, too, as the algorithm sees it."""
        return replace(state, round=self.before + state.round)

    def numbered(self, state: State) -> State:
        """A state from the algorithm, with its round counted from the beginning of this run."""
        return replace(state, round=state.round - self.before)


@dataclass(frozen=True)
class Attempt:
    """One process's attempt to run rounds: where it stores them, how many, and when it ends early.

    `store` is the run's address. `token` and `epoch` are those of the lease by which it alone may write. `rounds`
    is the last round, and `started` a time in seconds since 1970. Rounds are scored every `evaluate_every`
    rounds, and `keep` says what is written of them. The attempt ends early at `target_accuracy`, or after
    `patience` scores without a better loss. `executor` is the name of what runs the rounds.
    """

    store: str
    token: str
    epoch: int
    rounds: int
    evaluate_every: int = 1
    target_accuracy: float | None = None
    patience: int | None = None
    fsync: bool = False
    keep: Keep = field(default_factory=All)
    executor: str = ""
    started: float = field(default_factory=time.time)

    def open(self) -> RoundStore:
        """The run's store, which a process opens only once."""
        return open_store(self.store, self.token, self.epoch, self.fsync)

    def scored(self, round: int) -> bool:
        """Whether the network is scored after this round."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def stores_state(self, round: int) -> bool:
        """Whether the state of a round is stored wherever windows end. Scored rounds are: a run may stop there."""
        return self.keep.writes_state(round) or self.scored(round)

    def stop_reason(self, commit: Commit) -> str | None:
        """Why the run stops after this commit; None if it goes on."""
        accuracy = commit.score.accuracy if commit.score else None
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return f"accuracy {accuracy:.4f} has reached the target {self.target_accuracy}"
        if self.patience is not None and commit.since_best >= self.patience:
            return f"{commit.since_best} scores without a better loss than {commit.best:.6g}"
        return None


@dataclass(frozen=True)
class Job:
    """What an executor is given: the work and the attempt.

    `order` is the order in which pushes arrive at a parameter server; None leaves it to the executor. A round maps
    the partitions in so many `blocks`, `one_by_one` or all at once. The updates of `shard` neighbouring partitions
    are stored in one file.
    """

    work: Work
    attempt: Attempt
    order: Order | None = None
    blocks: int = 1
    one_by_one: bool = False
    shard: int = 1

    @property
    def plan(self) -> RoundPlan:
        """How the partitions are divided into blocks, if all take part."""
        return RoundPlan(self.work.partitions.split.partitions, self.blocks, self.shard)

    def plan_of(self, round: int) -> RoundPlan:
        """How the partitions that take part in a round are divided into blocks."""
        return replace(self.plan, cohort=self.work.cohort(round))

    def draw(self, round: int) -> int:
        """The number of what blocks hold: that of the split, or of the round if each has a cohort of its own."""
        return self.work.split(round) if self.work.cohort(round) is None or self.work.rotating else round

    @property
    def ranks(self) -> int:
        """How many ranks map one partition together."""
        return self.work.compute.ranks

    def stores_update(self, round: int, refused: str | None) -> bool:
        """Whether an update is stored that is `refused` for this reason: as `keep` says, or for its carry."""
        carried = bool(self.work.algorithm.map.carry) and refused is None
        return carried or self.attempt.keep.writes_updates(round)

    def run_by(self, executor: str) -> Job:
        """The job with the name of the executor that runs it, which commits record."""
        return replace(self, attempt=replace(self.attempt, executor=executor))
