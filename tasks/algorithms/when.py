"""When updates are applied: after all partitions have sent theirs, or one by one as they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms import options as option


@dataclass(frozen=True)
class Synchronous:
    """A round waits for the updates of all partitions.

    Example:
        >>> import roundweave as rw
        >>> algorithm = rw.Algorithm(rw.Gradient(), rw.Mean(), rw.Sgd(0.1), rw.Synchronous())
    """

    together: ClassVar[Literal[True]] = True
    usual_keep: ClassVar[str] = "all"

    def scored_every(self, taking_part: int) -> int:
        """Return the default number of rounds between scores."""
        return 1

    def updates(self, taking_part: int) -> int:
        """Return the number of updates that a round waits for, if so many partitions take part."""
        return taking_part


@dataclass(frozen=True)
class Asynchronous:
    """Partitions push to a parameter server when they are ready, and do not wait for one another.

    A partition fetches the server's state every `fetch_every` steps and pushes an update every `push_every` steps
    (Dean et al. 2012, Algorithm 1). The staleness of an update is the number of server rounds that accepted an
    update since the fetched state. An update whose staleness exceeds `max_staleness` is refused. If `stale` is
    ``scale``, the update is instead multiplied by 1 / (1 + staleness) (Zhang et al. 2016, section 3). Without
    `max_staleness` no update is refused, and ``scale`` applies to all updates. With a `buffer` of K, a server
    round applies the mean of K updates of different partitions (Nguyen et al. 2022, Algorithm 1). Without a buffer
    it applies one update.

    >>> when = Asynchronous(max_staleness=2, fetch_every=4, push_every=2, stale="scale")
    >>> [when.factor(staleness) for staleness in (0, 2, 3)], [when.fetches(push) for push in (1, 2, 3)]
    ([1.0, 1.0, 0.25], [True, False, True])
    """

    together: ClassVar[Literal[False]] = False
    usual_keep: ClassVar[str] = "updates:10"
    max_staleness: option.MaxStaleness = None
    fetch_every: int = 1
    push_every: int = 1
    stale: option.Stale = "drop"
    buffer: int = 1

    def __post_init__(self) -> None:
        option.check_options(self)
        if min(self.fetch_every, self.push_every, self.buffer) < 1:
            raise UsageError(f"{self}: fetch_every, push_every and buffer must be 1 or more")
        if self.fetch_every % self.push_every:
            raise UsageError(
                f"fetch_every {self.fetch_every} is no multiple of push_every {self.push_every}: "
                "a partition fetches only when it has pushed"
            )

    def scored_every(self, taking_part: int) -> int:
        """Return the default number of rounds between scores: ten updates of each partition at work."""
        return max(1, 10 * taking_part // self.buffer)

    def updates(self, taking_part: int) -> int:
        """Return the number of updates that a server round waits for, if so many partitions take part."""
        return self.buffer

    def fetches(self, push: int) -> bool:
        """Tell whether a partition fetches the server's state before it maps this push. Pushes count from 1."""
        return (push - 1) * self.push_every % self.fetch_every == 0

    def refusal(self, staleness: int) -> str | None:
        """Return why an update of this staleness is refused; None if it is accepted."""
        if self.max_staleness is None or self.stale == "scale" or staleness <= self.max_staleness:
            return None
        return f"staleness {staleness} is above {self.max_staleness}"

    def factor(self, staleness: int) -> float:
        """Return the factor that multiplies the direction of an update of this staleness."""
        return 1 / (1 + staleness) if self.stale == "scale" and staleness > (self.max_staleness or 0) else 1.0


@dataclass(frozen=True)
class Fetching(Asynchronous):
    """Asynchronous settings for algorithms with the option `fetch_every`."""

    fetch_every: option.FetchEvery = 1


@dataclass(frozen=True)
class Pushing(Fetching):
    """Asynchronous settings for algorithms with the options `fetch_every` and `push_every`."""

    push_every: option.PushEvery = 1


@dataclass(frozen=True)
class Buffered(Asynchronous):
    """Asynchronous settings for algorithms with the option `buffer`."""

    buffer: option.Buffer = 2


When = Synchronous | Asynchronous

SYNCHRONOUS = Synchronous()
