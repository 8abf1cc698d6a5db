"""A rank: a task on a Dask worker that stays there and computes all rounds of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from distributed import get_worker
from tornado.ioloop import PeriodicCallback

from roundweave.tasks.compute.communicator import Alone
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.numerics.pinning import generators_kept
from roundweave.tasks.process_group.collectives import Broken
from roundweave.tasks.process_group.connections import Connections
from roundweave.tasks.process_group.group import Group, Rendezvous, join_group, open_rendezvous
from roundweave.tasks.rounds.engine import BlockData, Committer, Engine
from roundweave.tasks.rounds.failures import MapRaised
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import WholeNetwork
from roundweave.tasks.rounds.persistence.streaming import InShares
from roundweave.tasks.rounds.steps import Mapped

Event = tuple[str, int]
"""What a rank notifies the client of: (``port``, where the ranks meet) or (``round``, the one just committed)."""

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

    # An exchange cannot ask by itself whether it is still waited for.
    asking = PeriodicCallback(lambda: connections.shut() if forgotten() else None, 1000)
    worker.loop.add_callback(asking.start)
    try:
        with join_group(meeting, halted, connections, opened) as group, generators_kept():
            examples = BlockData(group.rank // job.ranks, draw, data)
            return _run(job, group, examples, halted, lambda round: worker.log_event(topic, ("round", round)))
    except Broken:
        return None
    finally:
        worker.loop.add_callback(asking.stop)
        _halted.discard(topic)


def _run(
    job: Job, group: Group | Alone, data: BlockData, halted: Callable[[], bool], notify: Callable[[int], None]
) -> int:
    log = job.attempt.open().log
    first: int = group.all_gather((log.newest(log.rounds()) or 0) + 1)[0]
    engine, last = _engine(job, group, data), job.attempt.rounds
    outcome = engine.rank.read_outcome(first - 1)
    if group.rank:
        for _ in engine.rounds(outcome, last, halted):
            pass
        return first - 1
    committer, committed = Committer(job, notify=notify), first - 1
    for commit in committer.commits(engine.rounds(outcome, last, lambda: halted() or committer.stopped)):
        committed = commit.round
    return committed


def _engine(job: Job, group: Group | Alone, data: BlockData) -> Engine:
    """The engine of a rank. Each team of `job.ranks` ranks shares a network and maps a block of partitions."""
    ranks = job.ranks
    if ranks == 1 or isinstance(group, Alone):
        return Engine(WholeNetwork(job, by_tasks), data, others=group)
    teams = [range(begin, begin + ranks) for begin in range(0, group.ranks, ranks)]
    team, writers, same = group.part(teams), group.part(teams), group.part([*zip(*teams, strict=True)])
    return Engine(InShares.of(job, team, writers), data, same, team, writers)


def by_tasks(map_again: Callable[[], Mapped]) -> Mapped:
    """Raise `MapRaised`, so that Dask's tasks do the round: the other ranks are busy and cannot map this again."""
    raise MapRaised("a map of a rank raised")


def _forgotten() -> Callable[[], bool]:
    """A function that says whether the client no longer waits for this task."""
    worker, key = get_worker(), get_worker().get_current_task()

    def forgotten() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state != "executing"

    return forgotten
