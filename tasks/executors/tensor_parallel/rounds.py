"""The rounds of a rank that has a share of a network; the ranks that have the others are in its process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from roundweave.tasks.executors.tensor_parallel.streaming import NetworkShare
from roundweave.tasks.numerics.devices import most_memory
from roundweave.tasks.process_group.group import Group
from roundweave.tasks.rounds.engine import BlockData, Engine, Report
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed


def shared_rounds(
    job: Job, round: int, group: Group, data: BlockData, halted: Callable[[], bool]
) -> Iterator[Computed]:
    """Yield each round after a committed `round`. Neighbours in the group share a network and map a block of it.

    The ranks of block 0 write the states together.
    """
    networks = [range(first, first + job.ranks) for first in range(0, group.ranks, job.ranks)]
    sharing, storing = group.part(networks), group.part(networks)
    blocks = group.part([*zip(*networks, strict=True)])
    share = NetworkShare(job, sharing, storing)

    def report() -> Sequence[Report]:
        sent = {"activations": sharing.sent, "updates": blocks.sent, "tensors": storing.sent}
        return sharing.all_gather(Report(halted(), sent, most_memory()))

    engine = Engine(share.job, data, share.map_and_persist, blocks, report)
    for computed in engine.rounds(share.read_outcome(round), job.attempt.rounds):
        digests = share.persist_state(computed.outcome) if data.block == 0 else None
        yield replace(computed, digests=digests)
