"""Rounds as Dask futures: map, reduce, score and commit as tasks on any cluster.

A window of rounds is one graph. Its first task reads the state from the store at the last commit and depends on no
earlier future, so a worker's death costs the window so far and no more. Rounds that are replayed depend on nothing
but the store, and are all worked on at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from dask import annotate  # type: ignore[attr-defined]
from distributed import Client, Future

from storage.errors import ClusterError, listed
from storage.rounds.commits import Commit
from tasks.clusters.waiting import DeadlyWork, LostWork, finished, usable_workers
from tasks.clusters.watching import ANSWER_SECONDS, Watch
from tasks.executors.notices import lost_line
from tasks.executors.on_worker import step, step_after, step_aside
from tasks.numerics import Fingerprint, fingerprint
from tasks.rounds.committing import (
    commit_round,
    load_and_keep,
    load_block,
    map_and_keep,
    read_outcome,
    reduce_round,
    score_outcome,
)
from tasks.rounds.job import Job
from tasks.rounds.pace import Hangs, Notice, log_notice
from tasks.rounds.plan import RoundPlan
from tasks.rounds.replaying import replay_block, replay_round
from tasks.rounds.verdicts import Verdict

T = TypeVar("T")
PLACED = ("data", "map", "score")
"""Kinds of tasks that prefer the worker that holds their examples; the small others overtake them."""

Key = tuple[str, str, int, int]
"""(kind, attempt with spread and number of blocks, round, block).

Dask keeps durations by kind, and a key must never mean two things.
"""

RESUBMISSIONS = 2
"""How often in a row work that Dask lost is submitted again before a run gives up."""


@dataclass(frozen=True)
class Course(Generic[T]):
    """How rounds are gone through: the tasks of a window, and the kind of those that give what a round yields.

    A round that is `done` is there to `read`, whatever becomes of its task; `advice` is for one that is lost.
    """

    kind: str
    tasks: Callable[[Job, Sequence[int]], dict[Key, Any]]
    advice: Callable[[int], str]
    done: Callable[[int], bool] = lambda round: False
    read: Callable[[int], T] | None = None


class GraphExecutor:
    """Runs rounds on the workers of a Dask client; see `open_executor` for `worker_timeout`."""

    def __init__(self, client: Client, worker_timeout: float = 60.0, notice: Notice = log_notice) -> None:
        self.client = client
        self.notice = notice
        self._watch = Watch(client, worker_timeout)
        self._hangs = Hangs(worker_timeout, notice)
        self._deaths: Counter[int] = Counter()
        self._workers: list[str] = []
        self._spread = 0
        self._held: dict[Key, Future[Any]] = {}
        with suppress(TimeoutError):  # of a worker that hangs; it will be given up
            client.run(_import_torch, wait=False, callback_timeout=ANSWER_SECONDS)

    def fingerprints(self) -> dict[str, Fingerprint]:
        """What each worker may do to the bits; one that comes later is asked with its first map."""
        workers = usable_workers(self.client)
        futures = [
            self.client.submit(fingerprint, workers=[worker], allow_other_workers=True, pure=False)
            for worker in workers
        ]
        return dict(zip(workers, map(self._result, futures), strict=True))

    def gather(self, function: Callable[[int], T], partitions: range) -> list[T]:
        """What a function gives for each partition, called on the workers."""
        futures = self.client.map(partial(step, function), partitions, pure=False)
        return list(map(self._result, futures))

    def _result(self, future: Future[Any]) -> Any:
        try:
            return finished(self.client, future, look=self._look).result()
        except LostWork as error:
            raise ClusterError(f"work before round 1 was lost ({error}); start again") from error

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run a window of rounds, giving each commit as it is made; ends early where a commit says stop."""
        store = job.attempt.open()

        def advice(round: int) -> str:
            return f"rounds to {round - 1} are kept, `roundweave resume` goes on"

        course = Course("commit", self._window, advice, store.history.has, store.log.read)
        for commit in self._through(course, job, range(first, last + 1)):
            yield commit
            if commit.stop:
                return

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[Verdict]:
        """Replay rounds all at once, giving the verdict on each in this order; nothing is written."""
        course: Course[Verdict] = Course("verdict", self._replays, lambda round: "the run is as it was")
        yield from self._through(course, job, rounds)

    def _through(self, course: Course[T], job: Job, rounds: Sequence[int]) -> Iterator[T]:
        """What each round yields.

        The store is the truth: what Dask loses is submitted again from the first round that is not done, one
        partition at a time, so that a deadly one can be named.
        """
        todo, lost = list(rounds), 0
        while todo:
            spread = self._spread_over_workers(job, one_by_one=lost > 0)
            try:
                for done in self._submit(course, spread, todo[:1] if lost else todo.copy()):
                    yield done
                    del todo[0]
                    lost = 0
            except LostWork as error:
                self._look(spread)
                lost += 1
                if lost > RESUBMISSIONS or (lost > 1 and isinstance(error, DeadlyWork)):
                    line = f"round {todo[0]} was lost {lost} times ({self._suspects()}{error})"
                    raise ClusterError(f"{line}; {course.advice(todo[0])}") from error
                self._forget()
            except ClusterError as error:
                raise ClusterError(f"{self._suspects()}{error}") from error

    def _look(self, job: Job | None = None) -> None:
        """Tell of workers that were lost and of maps that take long, and remember what workers died at."""
        seen = self._watch.look()
        self._hangs.look(seen.paces)
        for lost in seen.lost:
            self._deaths.update({partition for _, partition in _parts(job, lost.working, PLACED)})
            again = _parts(job, (*lost.working, *lost.finished), ("map",))
            self.notice(lost_line(lost, [round for round, _ in again], [part for _, part in again]))

    def _suspects(self) -> str:
        """The partitions at which workers died most often since work was submitted, as the beginning of a line."""
        most = max(self._deaths.values(), default=0)
        at = listed(partition for partition, deaths in self._deaths.items() if deaths == most)
        return f"workers died at partition {at}: " if most else ""

    def _submit(self, course: Course[T], job: Job, rounds: Sequence[int]) -> Iterator[T]:
        self._deaths.clear()
        home = {block: self._workers[block % len(self._workers)] for block in range(job.plan.blocks)}
        with annotate(
            workers=lambda key: [home[key[3]]] if key[0] in PLACED else [],
            allow_other_workers=True,
            priority=lambda key: 0 if key[0] in PLACED else 1,
        ):
            last = [self._key(job, course.kind, round) for round in rounds]
            futures = self.client.get(course.tasks(job, rounds), last, sync=False)
        for round, future in zip(rounds, futures, strict=True):
            done = partial(course.done, round)
            finished(self.client, future, unless=done, look=partial(self._look, job))
            yield course.read(round) if course.read and done() else future.result()
            future.release()
        self._look(job)

    def _spread_over_workers(self, job: Job, one_by_one: bool) -> Job:
        """The job with a block for each worker there is now; who came or went moves the data."""
        workers = usable_workers(self.client)
        if workers != self._workers:
            self._forget()
            self._workers = workers
        partitions = job.plan.partitions
        blocks = partitions if one_by_one else min(len(workers), partitions)
        return replace(job, plan=RoundPlan(partitions, blocks, one_by_one))

    def _forget(self) -> None:
        """Begin anew: other keys, no data held. Futures are dropped, for cancelling would cut the connection."""
        self._spread += 1
        self._held = {}
        self._workers = []

    def _key(self, job: Job, kind: str, round: int, block: int = 0) -> Key:
        return kind, f"{job.attempt.token}-{self._spread}-{job.plan.blocks}", round, block

    def _hold(self, key: Key, function: Any, *arguments: Any) -> Future[Any]:
        """A future that outlives its window: the job itself, and the examples."""
        if key not in self._held:
            home = [self._workers[key[3] % len(self._workers)]]
            self._held[key] = self.client.submit(
                step, function, *arguments, key=key, workers=home, allow_other_workers=True
            )
        return self._held[key]

    def _window(self, job: Job, rounds: Sequence[int]) -> dict[Key, Any]:
        shared = self._hold(self._key(job, "job", 0), _itself, job)
        before = self._key(job, "read", rounds[0] - 1)
        graph: dict[Key, Any] = {before: (step, read_outcome, shared, rounds[0] - 1)}
        previous: Key | None = None
        for round in rounds:
            graph |= self._round(job, shared, round, before, previous)
            before, previous = self._key(job, "reduce", round), self._key(job, "commit", round)
        return graph

    def _round(
        self, job: Job, shared: Future[Any], round: int, before: Key, previous: Key | None
    ) -> dict[Key, Any]:
        """The tasks of one round: maps, the reduce, scores, the commit."""
        graph: dict[Key, Any] = {}
        after = self._key(job, "reduce", round)
        mapped: list[Key] = []
        scored: list[Key] = []
        for block, examples in enumerate(self._data(job, shared, round, load_and_keep)):
            called = _called(job, mapped)
            mapped.append(self._key(job, "map", round, block))
            graph[mapped[-1]] = (*called, map_and_keep, shared, before, examples, block)
            if job.attempt.scored(round):
                scored.append(self._key(job, "score", round, block))
                graph[scored[-1]] = (step, score_outcome, shared, after, examples)
        graph[after] = (step, reduce_round, shared, before, mapped)
        graph[self._key(job, "commit", round)] = (step_aside, commit_round, shared, after, scored, previous)
        return graph

    def _replays(self, job: Job, rounds: Sequence[int]) -> dict[Key, Any]:
        """The tasks of rounds that are replayed: maps, and what becomes of each round."""
        shared = self._hold(self._key(job, "job", 0), _itself, job)
        graph: dict[Key, Any] = {}
        for round in rounds:
            mapped: list[Key] = []
            for block, examples in enumerate(self._data(job, shared, round, load_block)):
                called = _called(job, mapped)
                mapped.append(self._key(job, "map", round, block))
                graph[mapped[-1]] = (*called, replay_block, shared, round, examples, block)
            graph[self._key(job, "verdict", round)] = (step, replay_round, shared, round, mapped)
        return graph

    def _data(self, job: Job, shared: Future[Any], round: int, load: Callable[..., Any]) -> list[Future[Any]]:
        number = job.split(round)
        keys = [self._key(job, "data", number, block) for block in range(job.plan.blocks)]
        # What is held is this job's, and of its examples those of the present and the former split.
        token = keys[0][1]
        self._held = {
            k: f for k, f in self._held.items() if k[1] == token and (k[0] != "data" or k[2] >= number - 1)
        }
        return [self._hold(key, load, shared, number, key[3]) for key in keys]


def _called(job: Job, before: Sequence[Key]) -> tuple[Any, ...]:
    """How a map is called: where they go one by one, once the one before it is done."""
    return (step_after, before[-1]) if job.plan.one_by_one and before else (step,)


def _parts(job: Job | None, keys: Iterable[Any], kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    """The (round, partition) of an attempt's tasks of some kinds; of examples, the number of their split."""
    if job is None:
        return []
    ours = [key for key in keys if key[0] in kinds and key[1].startswith(f"{job.attempt.token}-")]
    spans = [replace(job.plan, blocks=int(key[1].rpartition("-")[2])).span(key[3]) for key in ours]
    return [(key[2], partition) for key, span in zip(ours, spans, strict=True) for partition in span]


def _itself(value: Any) -> Any:
    return value


async def _import_torch() -> None:
    """Being found on a worker is all that it is for: importing this module there takes a second or two."""
