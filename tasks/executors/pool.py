"""The workers of a cluster as executors see them: who is there, has which data, is lost, and how one is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeVar

from dask import annotate  # type: ignore[attr-defined]
from distributed import Client, Future, get_worker, secede, wait, worker_client

from roundweave.storage.errors import ClusterError, RoundweaveError, StoreError, listed, show_whole
from roundweave.tasks.algorithms.maps.backprop import IS_LET_GO
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.reaching import MAPS, Mark, StoringProcess
from roundweave.tasks.executors.clusters.workers import (
    ANSWER_SECONDS,
    LOOK_SECONDS,
    SITE,
    Lost,
    Watch,
    finished,
    offers,
    report_timing,
    usable_workers,
)
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.apart import read_frozen
from roundweave.tasks.rounds.persistence.mapping import load_block, persist_split
from roundweave.tasks.rounds.timing import Stragglers, notify

T = TypeVar("T")

Key = tuple[str, str, int, Any]


class Task(NamedTuple):
    """The parts of a Dask key, which is a plain tuple: `Task(*key)` reads one.

    Dask measures durations by `kind`. A key must never be used for two different tasks, so `spread` names the
    attempt, how often its work was submitted anew, and the number of blocks. In ``push`` and ``pushes``, one map
    and several for a parameter server, `round` is the number of the first push and `block` the partitions. In
    ``data``, `round` is the job's `draw`.
    """

    kind: str
    spread: str
    round: int
    block: Any

    @property
    def attempt(self) -> str:
        return self.spread.split("-")[0]

    def partitions(self, job: Job) -> Sequence[int]:
        """The partitions that the task works on. Its key has the number of blocks that the plan had then."""
        if self.kind in PUSHES:
            return tuple(self.block)
        return replace(job, blocks=int(self.spread.rpartition("-")[2])).plan_of(self.round).members(self.block)


PUSHES = ("push", "pushes")
"""Kinds of tasks that map what partitions push to a parameter server."""

PLACED = ("data", "map", "score", *PUSHES)
"""Kinds of tasks that prefer the worker that holds their examples. All other kinds are small, and go first."""

AT_SITES = (*PLACED, "state", "frozen")
"""Kinds of tasks that run at the site of their partition, or where maps run. All other kinds may use the store."""

STARVED = 3
"""How many workers may run out of memory one after the other, with nothing done between, before a run gives up."""


class WorkerPool:
    """The workers of a Dask client, and the futures that they hold for longer than a window of rounds.

    `deaths` counts by partition how many workers died at its work; a worker that had the work of several, of which
    it began one, counts as a share for each of them. `out_of_memory` counts workers that ran out of
    memory since something was done. With `apart`, updates are not stored by the workers that map them, but handed
    to those that reach the store: as partitions have sites, or as some worker does not reach it.
    """

    def __init__(self, client: Client, setting: Setting) -> None:
        self.client = client
        self.sites = setting.sites
        self.workers: list[str] = []
        self.apart = bool(self.sites)
        self.deaths: dict[int, Fraction] = {}
        self.out_of_memory = 0
        self._mark = Mark.at(setting.store) if setting.store else None
        self._unreached: dict[str, str] = {}
        self._storing: StoringProcess | None = None
        self._watch = Watch(client, setting.worker_timeout)
        self._stragglers = Stragglers(setting.worker_timeout)
        self._paused: set[str] = set()
        self._seen: set[str] = set()
        self._spread = 0
        self._held: dict[Key, Future[Any]] = {}
        with suppress(TimeoutError):  # a worker that does not answer will be given up
            client.run(_import_torch, wait=False, on_error="ignore", callback_timeout=ANSWER_SECONDS)
        self._ask(usable_workers(client))

    def spread(self, job: Job, one_by_one: bool = False, ranks: int = 1) -> Job:
        """The job for the workers that are there now: a block for each `ranks` of them, but none is empty.

        If workers came or went since the last call, their data is forgotten and will be loaded again. With
        `one_by_one` each shard of partitions is a block, and blocks are mapped one after the other. With a
        deadline each shard is one, too, and with sites, where each partition is a shard.
        """
        workers = usable_workers(self.client)
        if workers != self.workers:
            self.forget()
            self._ask(workers)
            self.workers = workers
        most = len(job.plan.shards)
        if not job.work.drawn_from_present:
            most = min(most, job.work.partitions.taking_part)
        alone = one_by_one or self.sites or not job.waits_for_all
        blocks = most if alone else min(most, max(1, len(workers) // ranks))
        return replace(job, blocks=blocks, one_by_one=one_by_one)

    def _ask(self, workers: Sequence[str]) -> None:
        """Ask workers whether they reach the store, unless that is known, and have them offer what they can."""
        if self._mark is None:
            return
        self._unreached = {worker: why for worker, why in self._unreached.items() if worker in workers}
        new, answers = [worker for worker in workers if worker not in self._unreached], dict[str, str]()
        how: dict[str, Any] = {"on_error": "ignore", "callback_timeout": ANSWER_SECONDS}
        try:
            answers = self.client.run(self._mark.offer, workers=new, **how)
        except TimeoutError:  # a worker that does not answer will be given up
            notify(f"not all of {len(new)} workers have answered within {ANSWER_SECONDS} s")
        self._unreached |= answers
        self.apart = self.apart or any(answers.values())
        if self._storing is None and self._unreached and all(self._unreached.values()):
            notify("no worker reaches the store: a process of this machine stores for them")
            self._storing = StoringProcess(self.client, self._mark.resource)
        for worker, why in answers.items() if self._storing is None else ():
            if why:
                notify(f"worker {worker} does not reach the store ({why.partition(';')[0]}): others store for it")

    @property
    def stores(self) -> bool:
        """Whether something stores for workers already; a process that is to do so may not have begun."""
        return self._storing is None or self._storing.ready

    def await_storing(self) -> None:
        """Wait for the process that stores for workers, if there is to be one, and check that they reach it."""
        if self._storing is not None:
            self._storing.check_reached(list(self._unreached))

    def ask_again(self, error: StoreError) -> None:
        """Ask all workers again whether they reach the store, as a step failed there; raises its error if so."""
        before, self._unreached = self._unreached, {}
        self._ask(usable_workers(self.client))
        if not any(why and not before.get(worker) for worker, why in self._unreached.items()):
            raise error

    def end(self) -> None:
        """End the process that stores for workers, if there is one."""
        if self._storing is not None:
            self._storing.end()
            self._storing = None

    def there(self) -> list[int]:
        """The partitions whose site has a worker now."""
        offered = {name for names in offers(self.client).values() for name in names}
        return [partition for partition, site in enumerate(self.sites) if f"{SITE}{site}" in offered]

    def site_of(self, job: Job, round: int, block: int) -> str:
        """The site of a block of a round, whose examples are one partition's; empty if there are no sites."""
        return self.sites[job.plan_of(round).members(block)[0]] if self.sites else ""

    def frozen(self, job: Job, site: str) -> Future[Any]:
        """A future of the frozen parameters, which are sent to a site, or to where maps run, once."""
        read = self._hold(job, self.key(job, "frozen-read", 0), read_frozen, self.shared(job))
        return self._hold(job, self.key(job, "frozen", 0, site), itself, read)

    def needs(self, kind: str, partition: int) -> dict[str, float]:
        """The Dask resources that a task of this kind needs for a partition; none where any worker can do it."""
        if not self.apart:
            return {}
        if kind not in AT_SITES:
            return {self._mark.resource: 1} if self._mark else {}
        return {f"{SITE}{self.sites[partition]}" if self.sites else MAPS: 1}

    def _needs_of(self, job: Job, key: Key) -> dict[str, float]:
        task = Task(*key)
        if isinstance(task.block, str) and task.block:
            return {f"{SITE}{task.block}": 1}
        return self.needs(task.kind, task.partitions(job)[0] if self.sites and task.kind in PLACED else 0)

    def forget(self) -> None:
        """Use new keys from now on, and hold no data. Futures are dropped: cancelling them would disconnect."""
        self._spread += 1
        self._held = {}
        self.workers = []

    def homes(self, blocks: int) -> list[str]:
        """The address of the worker that each block prefers."""
        return [self.workers[block % len(self.workers)] for block in range(blocks)]

    def key(self, job: Job, kind: str, round: int, block: int | str | tuple[int, ...] = 0) -> Key:
        """The key of a task, which differs from all keys before the last `forget`."""
        return kind, f"{job.attempt.token}-{self._spread}-{job.blocks}", round, block

    def shared(self, job: Job) -> Future[Any]:
        """A future of the job, which is sent to the cluster once."""
        return self._hold(job, self.key(job, f"job-{job.attempt.executor}", 0), itself, job)

    def data(self, job: Job, round: int, load: Callable[..., Any]) -> list[Future[Any]]:
        """Futures of each block's examples in a round, made by `load(job, round, block)`.

        Workers hold the examples of the present split, or cohort, and of the one before. If blocks are mapped one
        by one, all are loaded before.
        """
        shared, number = self.shared(job), job.draw(round)
        if self.apart and load is not load_block:
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
            self.await_loaded(job, examples)
        return examples

    def await_loaded(self, job: Job, examples: Iterable[Future[Any]]) -> None:
        """Wait until examples are loaded: a worker that dies at a map then had no other partition's to load."""
        for future in examples:
            finished(self.client, future, look=partial(self.look, job))

    def _hold(self, job: Job, key: Key, function: Any, *arguments: Any) -> Future[Any]:
        """The future of a call, which is kept beyond its window of rounds and made only once for a key."""
        if key not in self._held:
            home = "" if self.apart else self.homes(Task(*key).block + 1)[-1]
            self._held[key] = self.submit_one(job, key, home, run_step, function, *arguments)
        return self._held[key]

    def submit_one(
        self, job: Job, key: Key, place: str, function: Callable[..., Any], *arguments: Any, priority: int = 0
    ) -> Future[Any]:
        """Submit a task that prefers the worker at a place. Futures, also in lists, stand for their values."""
        where: dict[str, Any] = {"workers": [place], "allow_other_workers": True}
        if self.apart:  # Dask loses a task that has both
            where = {"resources": self._needs_of(job, key)}
        return self.client.submit(function, *arguments, key=key, priority=priority, **where)

    def submit(
        self, job: Job, graph: Mapping[Key, Any], keys: list[Key], priority: Callable[[Key], int]
    ) -> list[Future[Any]]:
        """Submit a graph, and return the futures of some of its tasks. Those of a higher `priority` go first."""
        # Dask sends these functions to the scheduler, which cannot import this package: they must not use it.
        if self.apart:
            needs = {key: self._needs_of(job, key) for key in graph}
            where: dict[str, Any] = {"resources": needs.get}
        else:
            homes = self.homes(job.blocks)
            places = {key: [homes[key[3]]] for key in graph if key[0] in PLACED}
            where = {"workers": lambda key: places.get(key, []), "allow_other_workers": True}
        with annotate(priority=priority, **where):
            return list(self.client.get(graph, keys, sync=False))

    def look(self, job: Job | None = None) -> bool:
        """Notify of lost and paused workers and of stragglers, and count the deaths of workers by partition.

        Returns whether a worker was lost since the last look. Raises `ClusterError` once `STARVED` workers ran out
        of memory one after the other.
        """
        seen = self._watch.look()
        if self.apart and {*seen.workers} != self._seen:  # else they are asked before the next window
            self._seen = {*seen.workers}
            self._ask(sorted(offers(self.client)))
        self._stragglers.look(seen.timings)
        for worker in seen.paused.keys() - self._paused:
            memory = seen.paused[worker]
            notify(f"worker {worker} is paused by Dask: it uses {memory} of memory; give workers more")
        self._paused = set(seen.paused)
        for lost in seen.lost:
            at = {partition for _, partition in _parts(job, lost.working, PLACED)}
            at = at or {partition for partition in [lost.partition] if partition is not None}
            self.deaths |= {p: self.deaths.get(p, Fraction(0)) + Fraction(1, len(at)) for p in at}
            self.out_of_memory += bool(lost.memory)
            again = _parts(job, (*lost.working, *lost.finished), ("map", *PUSHES))
            of = "push" if job and job.work.algorithm.when.asynchronous else "round"
            notify(_lost_line(lost, [number for number, _ in again], [part for _, part in again], of))
            if self.out_of_memory == STARVED:
                what = f"{self.suspects()}{STARVED} workers ran out of memory in a row ({lost.memory})"
                self.deaths.clear()  # which are named
                raise ClusterError(
                    f"{what}; give workers more memory, or more --partitions of fewer examples each"
                )
        return bool(seen.lost)

    def suspects(self) -> str:
        """The partitions at which workers died most often, as the beginning of an error text; empty for none."""
        most = max(self.deaths.values(), default=Fraction(0))
        at = listed(partition for partition, deaths in self.deaths.items() if deaths == most)
        return f"workers died at partition {at}: " if most else ""


def _parts(job: Job | None, keys: Iterable[Any], kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    """What Dask keys of a job's attempt are about, as (number, partition), for the tasks of some kinds.

    The number is a round; for a ``push`` its own, and for ``data`` the job's `draw`.
    """
    if job is None:
        return []
    # Other programs on the cluster may have keys of any shape.
    tasks = [Task(*key) for key in keys if isinstance(key, tuple) and len(key) == 4 and key[0] in kinds]
    ours = [task for task in tasks if task.attempt == job.attempt.token]
    return [(task.round, partition) for task in ours for partition in task.partitions(job)]


def _lost_line(lost: Lost, numbers: Sequence[int], partitions: Iterable[int], of: str = "round") -> str:
    """The line about a lost worker: why, and which partitions are mapped again.

    `numbers` are those of rounds, or of pushes; `of` is the word for them.
    """
    why = f"has been silent for {lost.silent:.0f} s and is given up" if lost.silent else "is lost"
    if lost.memory:
        at = "" if lost.partition is None else f" at partition {lost.partition}"
        why = f"is lost, as it ran out of memory{at} ({lost.memory})"
    if not lost.working and not lost.finished:
        return f"worker {lost.worker} {why}; it had no work"
    again = listed(partitions)
    if not again:
        return f"worker {lost.worker} {why}; its work is done again"
    return f"worker {lost.worker} {why}; mapped again in {of} {listed(numbers)}: partition {again}"


def itself(value: Any) -> Any:
    return value


async def _import_torch() -> None:
    """Does nothing: to find this function, a worker imports this module and torch, which takes a second or two."""


def run_step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a worker. From then on the worker's heartbeats report the timing of its maps.

    An error of Roundweave is sent to the client without its cause, which may be a user's and fail to pickle.
    """
    report_timing()
    try:
        return function(*arguments)
    except RoundweaveError as error:
        show_whole(error)
        error.__cause__ = error.__context__ = None
        raise


def run_until_let_go(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a step that maps. It raises `MapAbandoned` at a batch once the scheduler has let its task go."""
    tasks, key = get_worker().state.tasks, get_worker().get_current_task()
    token = IS_LET_GO.set(lambda: key not in tasks or tasks[key].state == "cancelled")
    try:
        return run_step(function, *arguments)
    finally:
        IS_LET_GO.reset(token)


def run_pure(function: Callable[..., Any], job: Job, *arguments: Any) -> Any:
    """Call a step that needs of a job nothing but its work."""
    return run_step(function, job.work, *arguments)


def step_aside(function: Callable[..., Any], job: Job, *arguments: Any) -> Any:
    """Call a step that mostly waits for the store. If that is far away, the worker runs other tasks meanwhile."""
    if job.attempt.open().place.at_once > 1:
        secede()
    return run_step(function, job, *arguments)


def step_after(previous: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a step once another one is done: Dask waits for `previous`, and its value is not used."""
    return run_step(function, *arguments)


def elsewhere(function: Callable[[], T]) -> T:
    """Call a function on another worker than the one that calls this; in place if there is no other.

    Dask must not choose: it would give the function back to this worker while all others are busy.
    """
    here = get_worker().address
    with worker_client() as client:
        while others := client.nthreads().keys() - {here}:
            # The function holds a state and examples: scattering sends them from worker to worker.
            [sent] = client.scatter([function], hash=False)
            called: Future[T] = client.submit(run_step, sent, workers=[*others], pure=False)
            while not called.done() and others & client.nthreads().keys():
                with suppress(TimeoutError):
                    wait([called], timeout=LOOK_SECONDS)
            if called.done():
                return called.result()
        return function()
