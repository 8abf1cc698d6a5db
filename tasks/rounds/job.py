"""What rounds need to know of a run: their plan, the work, which decides bits, and the attempt, which does not."""

from __future__ import annotations

import functools
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.store import RoundStore, open_store
from roundweave.storage.upkeep.keep import All, Keep
from roundweave.storage.values.state import State
from roundweave.tasks.algorithms.algebra import Algorithm, Mixing
from roundweave.tasks.algorithms.reduces.tree import cover
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.splits.split import Asked
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.numerics.fingerprints import Fingerprint
from roundweave.tasks.numerics.pinning import derive_seed
from roundweave.tasks.own_code.code import Code, WithCode
from roundweave.tasks.rounds.scorers import Scorer

if TYPE_CHECKING:
    from roundweave.tasks.rounds.schedule import Schedule


@dataclass(frozen=True)
class RoundPlan:
    """The division of partitions into blocks of neighbours. One task maps a block. It does not change bits.

    `asked` are the partitions that take part, ascending; None for all. The updates of `shard` neighbours are
    stored in one file. They are in one block, so that one process writes the file. Blocks have equal numbers of
    files.
    """

    partitions: int
    blocks: int = 1
    shard: int = 1
    asked: tuple[int, ...] | None = None

    @property
    def root(self) -> tuple[int, int]:
        """The root of the tree over partitions: the first, and one after the last."""
        return 0, self.partitions

    @property
    def shards(self) -> Sequence[int]:
        """The numbers of the shards with partitions that take part: the most blocks that have work."""
        if self.asked is None:
            return range(-(-self.partitions // self.shard))
        return tuple(dict.fromkeys(partition // self.shard for partition in self.asked))

    def span(self, block: int) -> range:
        """Return the partitions of a block, also those that take no part."""
        return range(self._start(block), self._start(block + 1))

    def _start(self, block: int) -> int:
        at = -(-block * len(self.shards) // self.blocks)
        if at == len(self.shards):
            return self.partitions
        return self.shards[at] * self.shard if at else 0

    @property
    def taking_part(self) -> Sequence[int]:
        """The partitions that take part, ascending."""
        return range(self.partitions) if self.asked is None else self.asked

    def places(self, block: int) -> range:
        """Return the places of a block's partitions among all that take part."""
        span, all = self.span(block), self.taking_part
        return range(bisect_left(all, span.start), bisect_left(all, span.stop))

    def members(self, block: int) -> Sequence[int]:
        """Return the partitions of a block that take part, ascending."""
        places = self.places(block)
        return self.taking_part[places.start : places.stop]

    def block_of(self, partition: int) -> int:
        """Return the block of a partition."""
        return partition // self.shard * self.blocks // len(self.shards)

    def nodes(self, block: int) -> list[tuple[int, int]]:
        """Return the nodes of the tree over partitions that a block computes: the fewest that cover it."""
        span = self.span(block)
        return cover(*self.root, span.start, span.stop)

    def folds(self, fan_in: int) -> Iterator[list[range]]:
        """Yield the neighbouring results to fold into one, level by level, until at most `fan_in` are left.

        The numbers of the first level are those of blocks. The numbers of each later level count the results of
        the level before.
        """
        results = self.blocks
        while results > fan_in:
            plan = RoundPlan(results, -(-results // fan_in))
            yield [plan.span(group) for group in range(plan.blocks)]
            results = plan.blocks


WINDOW_SECONDS, LONG_SECONDS = 1.0, 10.0
"""The seconds of rounds in a window. The second number is for rounds that take long to be stored."""

LARGEST_WINDOW = 50
"""The most rounds in a window. The rounds of a window are all submitted at once."""


def window_size(
    wanted: int | None, seconds_per_round: float | None, long: bool = False, largest: int = LARGEST_WINDOW
) -> int:
    """Return how many rounds to submit at once: as many as `wanted`, or else as many as take about a second.

    Without known `seconds_per_round` the answer is one. Within a window, rounds do not wait for the client, and a
    round is stored while the next is computed. Therefore a window is `long` if the store is far away or the state
    large. The death of a worker costs at most the rounds of the window.
    """
    if wanted is not None:
        return wanted
    if seconds_per_round is None:
        return 1
    seconds = LONG_SECONDS if long else WINDOW_SECONDS
    return max(1, min(largest, int(seconds / max(seconds_per_round, 1e-6))))


REPLAYED_AT_ONCE = 32
"""The number of rounds that are replayed at once: enough for busy workers, few enough for a progress bar."""


def replay_windows(rounds: Sequence[int], split: Callable[[int], int]) -> Iterator[list[int]]:
    """Divide rounds into windows that are replayed at once.

    All rounds of a window have the same split, so that workers hold the examples of one split only.
    """
    for _, group in groupby(rounds, split):
        same = list(group)
        for first in range(0, len(same), REPLAYED_AT_ONCE):
            yield same[first : first + REPLAYED_AT_ONCE]


STORE = "store"
"""The name, among the machines of a run, of the processes that reduce and store."""


@dataclass(frozen=True)
class Work(WithCode):
    """Everything that decides the bits of a round, besides the state before it.

    A map uses so many `threads` of torch, and `mapper` computes it. A `fingerprint` of None accepts any machine.
    Empty `sources` accept any version of Roundweave, and of the imports of the user's functions, `all_code`.
    `fingerprints` are those of places and of `STORE`, if these may be other machines. `code` is that of the
    algorithm alone, whose classes updates may have. `before` is the number of rounds of an earlier run that this
    run continues: randomness, splits and schedules count them. `quorum` is the number of sound updates that a
    round needs. `mixing` averages networks if each partition has its own. `schedule` decides who begins when, None
    if a round's partitions begin together. `scorers` score rounds; the first one scores the held-out examples.
    """

    objective: Objective
    algorithm: Algorithm
    partitions: Partitions
    seed: int
    threads: int = 1
    mapper: Mapper = field(default_factory=Mapper)
    quorum: int = 1
    fingerprint: Fingerprint | None = None
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    code: tuple[Code, ...] = ()
    before: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    all_code: tuple[Code, ...] = ()
    mixing: Mixing | None = None
    schedule: Schedule | None = None
    scorers: tuple[Scorer, ...] = (Scorer(),)

    def map_seed(self, number: int, partition: int) -> int:
        """Return the seed of a map, from the number of its round, or from what its schedule counts.

        The reduce of a round has -1 for its `partition`.
        """
        return derive_seed(self.seed, self.before + number, partition)

    def split(self, round: int) -> int:
        """Return the number of the split that a round uses, from 0."""
        return self.partitions.split.number(self.before + round)

    @property
    def rotating(self) -> bool:
        """Whether a schedule's partitions give way to others that are drawn."""
        return self.partitions.sampler is not None and self.schedule is not None

    def asks(self, round: int, present: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        """Return the partitions that a round asks, ascending; None for all.

        If only `present` partitions may take part, the draw is among them. With a schedule, these are the first
        that compute.
        """
        return asked_of(self.partitions, self.seed, self.before + (0 if self.rotating else round), present)

    @property
    def drawn_from_present(self) -> bool:
        """Whether a round draws among the partitions that are there when it begins."""
        return self.partitions.sampler is not None and self.partitions.sampler.present

    def counted(self, state: State) -> State:
        """Return a state whose round also counts the rounds of the earlier run, as the algorithm sees it."""
        return replace(state, round=self.before + state.round)

    def numbered(self, state: State) -> State:
        """Return a state from the algorithm, with its round counted from the beginning of this run."""
        return replace(state, round=state.round - self.before)


@functools.lru_cache(maxsize=4)
def asked_of(
    partitions: Partitions, seed: int, round: int, present: tuple[int, ...] | None = None
) -> tuple[int, ...] | None:
    """Return the partitions that a round asks, drawn once for a round, which asks several times.

    See `Work.asks`.
    """
    sampler = partitions.sampler
    if isinstance(sampler, Asked):
        return sampler.rounds.get(round)
    if sampler is None or (sampler.present and present is None):
        return None
    return sampler.draw(seed, round, sizes_to_draw(partitions, partitions.split.number(round)), present)


@functools.lru_cache(maxsize=2)
def sizes_to_draw(partitions: Partitions, number: int) -> Sequence[int]:
    """Return how many examples each partition has under a split; any numbers, if the draw ignores sizes."""
    by_size = partitions.sampler is not None and partitions.sampler.by_size
    return partitions.sizes(number) if by_size else range(partitions.split.partitions)


@dataclass(frozen=True)
class Attempt(WithCode):
    """One process's attempt to run rounds: where it stores them, how many, and when it ends early.

    `store` is the run's address. `token` and `epoch` are those of its lease, by which it alone may write. `rounds`
    is the last round, and `started` a time in seconds since 1970. Rounds are scored every `evaluate_every` rounds,
    and `keep` decides what is written of them. `best` names the score that ranks rounds. The attempt ends early
    after a commit for which one of `stops` gives a reason. If it `may_go_ahead`, rounds may be computed before
    this process has seen the commits of the rounds before. `executor` is the name of what runs it, and `code` that
    by which `stops` are defined.
    """

    store: str
    token: str
    epoch: int
    rounds: int
    evaluate_every: int = 1
    best: str = "loss"
    stops: tuple[Callable[[Commit], str | None], ...] = ()
    fsync: bool = False
    keep: Keep = field(default_factory=All)
    may_go_ahead: bool = True
    code: tuple[Code, ...] = ()
    executor: str = ""
    started: float = field(default_factory=time.time)

    def open(self) -> RoundStore:
        """Return the run's store, which a process opens only once."""
        return open_store(self.store, self.token, self.epoch, self.fsync)

    def scored(self, round: int) -> bool:
        """Tell whether the network is scored after this round."""
        return round % self.evaluate_every == 0 or round == self.rounds

    @property
    def may_stop(self) -> bool:
        """Whether the attempt may end before its last round."""
        return bool(self.stops)

    def stop_reason(self, commit: Commit) -> str | None:
        """Return why the run stops after this commit; None if it goes on."""
        return next(filter(None, (stop(commit) for stop in self.stops)), None)


class Patience(Protocol):
    """How long a round that has its quorum waits for the rest. `Plan.fill` takes one as ``patience``."""

    def seconds(self, took: Sequence[float]) -> float:
        """Return after how many seconds a round goes on without the rest. `took` are those of the last answers."""


@dataclass(frozen=True)
class Job:
    """The input of an executor: the work and the attempt.

    A round maps the partitions in so many `blocks`, `one_by_one` or all at once. The updates of `shard`
    neighbouring partitions are stored in one file. `patience` is that of its rounds; without one, rounds wait for
    all.
    """

    work: Work
    attempt: Attempt
    blocks: int = 1
    one_by_one: bool = False
    shard: int = 1
    patience: Patience | None = None

    @property
    def plan(self) -> RoundPlan:
        """The division of the partitions into blocks, if all take part."""
        return RoundPlan(self.work.partitions.split.partitions, self.blocks, self.shard)

    def plan_of(self, round: int) -> RoundPlan:
        """Return the division of the partitions in a round into blocks."""
        return replace(self.plan, asked=self.work.asks(round))

    def draw(self, round: int) -> int:
        """Return the number that decides the content of blocks: the split, or the round if each draws anew."""
        return self.work.split(round) if self.work.asks(round) is None or self.work.rotating else round

    @property
    def suffix(self) -> str:
        """A suffix that tells this job from others of its attempt whose rounds ask other partitions.

        May be empty.
        """
        sampler = self.work.partitions.sampler
        return f"-{min(sampler.rounds, default=0)}" if isinstance(sampler, Asked) else ""

    @property
    def waits_for_all(self) -> bool:
        """Whether a round needs an answer of each partition that takes part, and these are known beforehand."""
        return self.patience is None and not self.work.drawn_from_present

    @property
    def ranks(self) -> int:
        """The number of ranks that map one partition together."""
        return self.work.mapper.ranks

    @property
    def repeatable(self) -> bool:
        """Whether any process that stores can map the rounds after a stored state again, to the same bits.

        With a schedule, rounds are mapped from earlier states, too, unless `keep` provides for that.
        """
        begins_together = self.work.schedule is None or self.attempt.keep.maps_again
        return begins_together and self.work.fingerprint is not None and not self.work.partitions.placement.stays

    def stores_state(self, round: int) -> bool:
        """Tell whether the state of a round is stored wherever windows end: by `keep`, or to go on from it."""
        stays = self.attempt.keep.state(round, self._newest(round))
        return stays or not (self.repeatable or self.stores_updates(round))

    def stores_updates(self, round: int) -> bool:
        """Tell whether all updates of a round are stored."""
        return self.attempt.keep.updates(round, self._newest(round))

    def _newest(self, round: int) -> int:
        """Return the newest round when it is decided for good whether this one stays, as far as known."""
        return self.attempt.rounds if self.repeatable and not self.attempt.may_stop else round

    def stores_update(self, round: int, refused: str | None) -> bool:
        """Tell whether an update with this reason to be `refused` is stored: by `keep`, or for its carry."""
        carried = bool(self.work.algorithm.map.carry) and refused is None
        return carried or self.stores_updates(round)

    def run_by(self, executor: str) -> Job:
        """Return the job with the name of the executor that runs it, which commits record."""
        return replace(self, attempt=replace(self.attempt, executor=executor))
