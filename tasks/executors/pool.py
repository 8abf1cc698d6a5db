"""The workers of a cluster as executors see them: who is there, has which data, and is given which work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import dask
from dask import annotate  # type: ignore[attr-defined]
from distributed import Client, Future, LocalCluster

from roundweave.storage.errors import ClusterError, StoreError
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.calls import itself, run_step
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.reaching import Reach
from roundweave.tasks.executors.clusters.routing import BESIDE_MAPS, WITH_EXAMPLES, Key, Routing, Task
from roundweave.tasks.executors.clusters.workers import (
    DeadlyWork,
    LostWork,
    connected,
    finished,
    offers,
    result,
    usable_workers,
)
from roundweave.tasks.executors.losses import Losses
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.apart import read_frozen
from roundweave.tasks.rounds.persistence.mapping import load_block, persist_split

T = TypeVar("T")

RESUBMISSIONS = 2
"""How many times in a row lost work is submitted again before a run gives up."""

Way = Callable[[Sequence[int], int], Iterator[T]]
"""A way to do rounds: yields what becomes of them, in order; it is told how many times in a row work was lost."""


class WorkerPool:
    """The workers of a Dask client, and the futures that they hold for longer than a window of rounds.

    `job` is the one that they work for, or did last.
    """

    def __init__(self, client: Client, setting: Setting) -> None:
        self.client = client
        self.setting = setting
        self.job: Job | None = None
        self.workers: list[str] = []
        self.losses = Losses(client, setting.worker_timeout)
        self.reach = Reach(client, setting.store, setting.placement)
        self._seen: set[str] = set()
        self._spread = 0
        self._held: dict[Key, Future[Any]] = {}
        self.reach.ask(usable_workers(client))

    @property
    def routing(self) -> Routing:
        """Where tasks run."""
        return self.reach.routing

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """Call a function on each worker that is there now; the results by the worker's address."""
        return self._prepared(partial(self._ask_each, function))

    def _ask_each(self, function: Callable[[], T]) -> dict[str, T]:
        workers = usable_workers(self.client)
        where = {"allow_other_workers": True, "pure": False}
        futures = [self.client.submit(run_step, function, workers=[worker], **where) for worker in workers]
        results = dict(zip(workers, map(self.result, futures), strict=True))
        if not results.keys() <= {*usable_workers(self.client)}:  # another one has answered for one that is gone
            raise LostWork("workers come and go while each is asked")
        return results

    def gather(self, function: Callable[[int], T], numbers: Iterable[int], stored: bool = False) -> list[T]:
        """Call a function with each partition's number on the workers; the results in order of partitions.

        If `stored`, numbers are of anything else, and the function is called where the store is reached.
        """
        return self._prepared(partial(self._ask_of_each, function, tuple(numbers), "gather" if stored else "data"))

    def _ask_of_each(self, function: Callable[[int], T], numbers: Sequence[int], kind: str) -> list[T]:
        usable_workers(self.client)  # waits for those of places
        if kind not in BESIDE_MAPS:
            self.reach.await_storing()
        # It is sent once, as it may hold a network; Dask warns of that, and would send it with each number.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            at = self.routing.needs("gather", 0) if self.reach.ready else {}
            shared = self.client.submit(itself, function, pure=False, resources=at)
        futures: list[Future[T]] = []
        for number in numbers:
            at = self.routing.needs(kind, number)
            futures.append(self.client.submit(run_step, shared, number, pure=False, resources=at))
        return list(map(self.result, futures))

    def _prepared(self, ask: Callable[[], T]) -> T:
        """Return what `ask` gets from workers before round 1; it is called again after a loss."""
        self.losses.deaths.clear()
        (results,) = self.despite_losses(None, [0], lambda rounds, losses: iter([ask()]))
        self.look()
        return results

    def commits(
        self, job: Job, first: int, last: int, compute: Way[Commit], most: int = RESUBMISSIONS
    ) -> Iterator[Commit]:
        """Yield the commits of rounds from `first` to `last`, or until one says to stop; see `despite_losses`."""
        for commit in self.despite_losses(job, range(first, last + 1), compute, most):
            yield commit
            if commit.stop:
                return

    def despite_losses(
        self,
        job: Job | None,
        rounds: Sequence[int],
        compute: Way[T],
        most: int = RESUBMISSIONS,
        advice: str = "",
    ) -> Iterator[T]:
        """Yield the result of each round of a job. If work is lost, begin again at the first that is not done.

        Round 0 is the work before round 1, when there is no job yet. Raises `ClusterError` if work is lost more
        often than `most`; it names the partitions at which workers died, and gives an `advice`. With a
        schedule a partition's deaths count, even if other rounds were done between them.
        """
        self.job, lost = job, self.losses
        losses = lost.out_of_memory = 0
        while rounds:
            try:
                with connected(self.client):
                    for done in compute(rounds, losses):
                        yield done
                        rounds, losses, lost.out_of_memory = rounds[1:], 0, 0
            except LostWork as error:
                self.look()
                if isinstance(error.__cause__, StoreError):
                    self.reach.ask_again(error.__cause__)
                else:
                    alone = lost.deaths.values() if job and job.work.schedule else ()
                    losses = max(losses + 1, int(max(alone, default=0)))
                if losses > most or (losses == most and isinstance(error, DeadlyWork)):
                    what = f"round {rounds[0]}" if rounds[0] else "work before round 1"
                    kept = f"rounds to {rounds[0] - 1} are kept, `roundweave resume` continues"
                    line = f"{what} was lost {losses} times ({lost.suspects()}{error})"
                    raise ClusterError(f"{line}; {advice or (kept if rounds[0] else 'start again')}") from error
                self.forget()
            except ClusterError as error:
                raise ClusterError(f"{lost.suspects()}{error}") from error

    def look(self) -> bool:
        """Look at the workers; returns whether one was lost. Raises `ClusterError` as `Losses.look` does."""
        lost = self.losses.look(self.job)
        if self.routing.apart and self.losses.workers != self._seen:  # else they are asked before a window
            self._seen = self.losses.workers
            self.reach.ask(sorted(offers(self.client)))
        return lost

    def wait(self, future: Future[Any], unless: Callable[[], bool] = lambda: False) -> None:
        """Wait for a future, or until `unless` returns True; raises as `finished` does."""
        finished(self.client, future, unless, self.look)

    def result(self, future: Future[Any]) -> Any:
        """Return the value of a future, which is waited for; raises as `workers.result` does."""
        return result(self.client, future, self.look)

    def there(self) -> list[int]:
        """Return the partitions whose place has a worker now."""
        offered = {name for names in offers(self.client).values() for name in names}
        return [number for number, resource in enumerate(self.setting.placement.resources) if resource in offered]

    def spread(self, job: Job, one_by_one: bool = False, ranks: int = 1) -> Job:
        """Return the job for the workers that are there now: a block for each `ranks` of them, but none is empty.

        If workers came or went since the last call, their data is forgotten and will be loaded again. With
        `one_by_one` each shard of partitions is a block, and blocks are mapped one after the other. Each shard is
        one, too, where rounds do not wait for all, and where each partition has a place, and is a shard.
        """
        workers = usable_workers(self.client)
        if workers != self.workers:
            self.forget()
            self.reach.ask(workers)
            self.workers = workers
        most = len(job.plan.shards)
        if not job.work.drawn_from_present:
            most = min(most, job.work.partitions.taking_part)
        alone = one_by_one or self.setting.placement.resources or not job.waits_for_all
        blocks = most if alone else min(most, max(1, len(workers) // ranks))
        return replace(job, blocks=blocks, one_by_one=one_by_one)

    def forget(self) -> None:
        """Use new keys from now on, and hold no data. Futures are dropped: cancelling them would disconnect."""
        self._spread += 1
        self._held = {}
        self.workers = []

    def home(self, block: int) -> str:
        """Return the address of the worker that a block prefers."""
        return self.workers[block % len(self.workers)]

    def key(self, job: Job, kind: str, round: int, block: int | str | tuple[int, ...] = 0) -> Key:
        """Return the key of a task, which differs from all keys before the last `forget`."""
        return kind, f"{job.attempt.token}-{self._spread}-{job.blocks}{job.suffix}", round, block

    def shared(self, job: Job) -> Future[Any]:
        """Return a future of the job, which is sent to the cluster once."""
        return self._hold(job, self.key(job, f"job-{job.attempt.executor}", 0), itself, job)

    def frozen(self, job: Job, place: str) -> Future[Any]:
        """Return a future of the frozen parameters, which are sent to a place, or to where maps run, once."""
        read = self._hold(job, self.key(job, "frozen-read", 0), read_frozen, self.shared(job))
        return self._hold(job, self.key(job, "frozen", 0, place), itself, read)

    def data(self, job: Job, round: int, load: Callable[..., Any]) -> list[Future[Any]]:
        """Futures of each block's examples in a round, made by `load(job, round, block)`.

        Workers hold the examples of the present draw and of the one before, see `Job.draw`. If blocks are mapped
        one by one, all are loaded before.
        """
        shared, number = self.shared(job), job.draw(round)
        if self.routing.apart and load is not load_block:
            load = load_block
            self._hold(job, self.key(job, "split", number), persist_split, shared, round)
        keys = [self.key(job, "data", number, block) for block in range(job.blocks)]
        self._held = {
            key: future
            for key, future in self._held.items()
            if (task := Task(*key)).spread == Task(*keys[0]).spread
            and (task.kind not in ("data", "split") or task.round >= number - 1)
        }
        examples = [self._hold(job, key, load, shared, round, block) for block, key in enumerate(keys)]
        if job.one_by_one:
            self.await_loaded(examples)
        return examples

    def await_loaded(self, examples: Iterable[Future[Any]]) -> None:
        """Wait until examples are loaded: a worker that dies at a map then had no other partition's to load."""
        for future in examples:
            self.wait(future)

    def _hold(self, job: Job, key: Key, function: Any, *arguments: Any) -> Future[Any]:
        """Return the future of a call, which is kept beyond its window of rounds and made only once for a key."""
        if key not in self._held:
            home = "" if self.routing.apart else self.home(Task(*key).block)
            self._held[key] = self.submit_one(job, key, home, run_step, function, *arguments)
        return self._held[key]

    def submit_one(
        self, job: Job, key: Key, home: str, function: Callable[..., Any], *arguments: Any, priority: int = 0
    ) -> Future[Any]:
        """Submit a task that may prefer the worker at `home`. Futures, also in lists, stand for their values."""
        where = self.routing.where(job, key, home)
        return self.client.submit(function, *arguments, key=key, priority=priority, **where)

    def submit(
        self, job: Job, graph: Mapping[Key, Any], keys: list[Key], priority: Callable[[Key], int]
    ) -> list[Future[Any]]:
        """Submit a graph, and return the futures of some of its tasks. Those of a higher `priority` go first."""
        # Dask sends these functions to the scheduler, which cannot import this package: they must not use it.
        homes = {key: self.home(key[3]) if key[0] in WITH_EXAMPLES else "" for key in graph}
        told = {key: self.routing.where(job, key, home) for key, home in homes.items()}
        names = next(iter(told.values()))
        where = {name: {key: each[name] for key, each in told.items()}.get for name in names}
        with annotate(priority=priority, **where):
            return list(self.client.get(graph, keys, sync=False))


class OnPool(Protocol):
    """An executor that holds a pool."""

    pool: WorkerPool


P = TypeVar("P", bound=OnPool)


@contextmanager
def on_cluster(kind: Callable[[Client, Setting], P], setting: Setting) -> Iterator[P]:
    """A context with an executor of a kind on a cluster, which is started if none is named.

    Raises `ClusterError`.
    """
    local = setting.scheduler, setting.workers, setting.private, setting.wait_for_workers
    with connect(*local, setting.placement, setting.certificates) as client:
        if isinstance(client.cluster, LocalCluster) and not setting.placement.stays:
            setting = replace(setting, store="")  # its workers see what this process sees
        executor = kind(client, setting)
        try:
            yield executor
        finally:
            executor.pool.reach.end()
