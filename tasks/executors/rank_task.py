"""A rank: a task on a Dask worker that stays there and computes all rounds of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import urlparse

from distributed import get_worker
from tornado.ioloop import PeriodicCallback

from roundweave.tasks.compute.communicator import Alone
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.numerics.devices import most_memory
from roundweave.tasks.numerics.pinning import generators_kept
from roundweave.tasks.process_group.channels import Broken
from roundweave.tasks.process_group.group import Connections, Group, Rendezvous, join_group, open_rendezvous
from roundweave.tasks.process_group.peers import meet_peers
from roundweave.tasks.rounds.engine import BlockData, Committer, Engine, Report
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed
from roundweave.tasks.rounds.persistence.mapping import map_and_persist
from roundweave.tasks.rounds.persistence.outcomes import read_outcome
from roundweave.tasks.rounds.steps import Mapped, MapRaised

Event = tuple[str, int]
"""What a rank notifies the client of: (``port``, where the ranks meet) or (``round``, the one just committed)."""

TELLING_MS = 50
"""The client is told of all rounds of so many milliseconds at once: four processes pass each event on."""

_halted: set[str] = set()


async def halt(topic: str) -> None:
    """Have the ranks of a topic end after the round that they are computing. Called on their workers."""
    _halted.add(topic)


def take_part(job: Job, draw: int, data: BlockExamples, meeting: Rendezvous, topic: str) -> int | None:
    """Compute all rounds after the last committed one, as the rank that `meeting` says.

    `data` are the examples of the rank's block for the job's `draw`. Returns the last round that
    this rank knows to be committed, or None if another rank is lost. Ends early if it is halted, or if the client
    no longer waits for it.
    """
    worker, forgotten, connections = get_worker(), _forgotten(), Connections()
    opened = open_rendezvous(meeting.host) if meeting.rank == 0 else None
    if opened is not None:
        meeting = replace(meeting, port=opened.port)
        worker.log_event(topic, ("port", meeting.port))

    def halted() -> bool:
        return topic in _halted or forgotten()

    committed = deque[int](maxlen=1)  # the newest round, until the client is told

    def tell() -> None:
        if committed:
            worker.log_event(topic, ("round", committed.pop()))

    # An exchange cannot ask by itself whether it is still waited for.
    asking = PeriodicCallback(lambda: connections.shut() if forgotten() else None, 1000)
    telling = PeriodicCallback(tell, TELLING_MS)
    worker.loop.add_callback(asking.start)
    worker.loop.add_callback(telling.start)
    try:
        with join_group(meeting, halted, connections, opened) as group, generators_kept():
            examples = BlockData(group.rank // job.ranks, (job.attempt.token, draw), data)
            return _run(job, group, examples, halted, committed.append)
    except Broken:
        return None
    finally:
        worker.loop.add_callback(asking.stop)
        worker.loop.add_callback(telling.stop)
        worker.loop.add_callback(tell)  # also if a step raised: the rounds before it come before the error
        _halted.discard(topic)


def _run(
    job: Job, group: Group | Alone, data: BlockData, halted: Callable[[], bool], notify: Callable[[int], None]
) -> int:
    log, committer = job.attempt.open().log, Committer(job, notify=notify)
    committed: int = group.all_gather(log.newest(log.rounds()) or 0)[0]
    rounds = _rounds(job, committed, group, data, lambda: halted() or committer.stopped)
    if group.rank:
        deque(rounds, maxlen=0)  # rank 0 commits them
        return committed
    for commit in committer.commits(rounds):
        committed = commit.round
    return committed


def _rounds(
    job: Job, round: int, group: Group | Alone, data: BlockData, halted: Callable[[], bool]
) -> Iterator[Computed]:
    """Yield the rounds after a committed `round`, as this rank computes them."""
    if job.work.schedule and isinstance(group, Group):
        given = data(job, round + 1), halted, by_tasks
        with meet_peers(group, str(urlparse(get_worker().address).hostname)) as peers:
            yield from job.work.schedule.by_ranks(job, round, group.rank, peers, *given)
        return
    if job.ranks > 1 and isinstance(group, Group):
        yield from job.work.mapper.rounds(job, round, group, data, halted)
        return

    def report() -> Sequence[Report]:
        return [Report(halted(), {"updates": group.sent}, most_memory())]

    engine = Engine(job, data, partial(map_and_persist, job, again=by_tasks), group, report)
    yield from engine.rounds(read_outcome(job, round), job.attempt.rounds)


def by_tasks(map_again: Callable[[], Mapped]) -> Mapped:
    """Raise `MapRaised`, so that Dask's tasks do the round: the other ranks are busy and cannot map this again."""
    raise MapRaised("a map of a rank raised")


def _forgotten() -> Callable[[], bool]:
    """Return a function that says whether the client no longer waits for this task."""
    worker, key = get_worker(), get_worker().get_current_task()

    def forgotten() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state != "executing"

    return forgotten
