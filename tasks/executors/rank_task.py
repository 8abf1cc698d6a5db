"""A rank: a task on a Dask worker that stays there and computes all rounds of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from distributed import get_worker
from tornado.ioloop import PeriodicCallback

from roundweave.tasks.compute.communicator import Alone
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.numerics.devices import most_memory
from roundweave.tasks.numerics.pinning import generators_kept
from roundweave.tasks.process_group.channels import Broken
from roundweave.tasks.process_group.group import Connections, Group, Rendezvous, join_group, open_rendezvous
from roundweave.tasks.process_group.peers import Peer, meet_peers
from roundweave.tasks.rounds.engine import BlockData, Committer, Engine, Report
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed
from roundweave.tasks.rounds.persistence.mapping import map_and_persist
from roundweave.tasks.rounds.persistence.recomputing import read_outcome
from roundweave.tasks.rounds.steps import Mapped, MapRaised

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

            def notify(round: int) -> None:
                worker.log_event(topic, ("round", round))

            if isinstance(group, Group) and job.work.algorithm.when.asynchronous:
                with meet_peers(group, connections, meeting.host) as peers:
                    return _serve(job, group, data, peers, halted, notify)
            examples = BlockData(group.rank // job.ranks, (job.attempt.token, draw), data)
            return _run(job, group, examples, halted, notify)
    except Broken:
        return None
    finally:
        worker.loop.add_callback(asking.stop)
        _halted.discard(topic)


def _run(
    job: Job, group: Group | Alone, data: BlockData, halted: Callable[[], bool], notify: Callable[[int], None]
) -> int:
    committer = Committer(job, notify=notify)
    committed = _committed(job, group)
    rounds = _rounds(job, committed, group, data, lambda: halted() or committer.stopped)
    if group.rank:
        deque(rounds, maxlen=0)  # rank 0 commits them
        return committed
    for commit in committer.commits(rounds):
        committed = commit.round
    return committed


def _committed(job: Job, group: Group | Alone) -> int:
    """The last committed round, as the first rank sees it."""
    log = job.attempt.open().log
    committed: int = group.all_gather(log.newest(log.rounds()) or 0)[0]
    return committed


def _serve(
    job: Job,
    group: Group,
    data: BlockExamples,
    peers: Mapping[int, Peer],
    halted: Callable[[], bool],
    notify: Callable[[int], None],
) -> int:
    """Run asynchronous rounds, whose server is the first rank."""
    from roundweave.tasks.executors.parameter_server.among_ranks import RankServer, map_for_server

    committed = _committed(job, group)
    if group.rank:
        map_for_server(job, data, peers[0], by_tasks)
        return committed
    return RankServer(job, committed, peers).run(halted, notify)


def _rounds(
    job: Job, round: int, group: Group | Alone, data: BlockData, halted: Callable[[], bool]
) -> Iterator[Computed]:
    """The rounds after a committed `round`, as this rank computes them."""
    if job.ranks > 1 and isinstance(group, Group):
        from roundweave.tasks.executors.tensor_parallel.streaming import shared_rounds

        return shared_rounds(job, round, group, data, halted)

    def report() -> Sequence[Report]:
        return [Report(halted(), {"updates": group.sent}, most_memory())]

    engine = Engine(job, data, partial(map_and_persist, job, again=by_tasks), group, report)
    return engine.rounds(read_outcome(job, round), job.attempt.rounds)


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
