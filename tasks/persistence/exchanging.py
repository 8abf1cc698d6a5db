"""The exchange of decentralised training: a partition begins from the average of its neighbours' networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from storage.values.tensors import Vectors
from tasks.numerics.dtypes import accumulator
from tasks.rounds.job import Work
from tasks.rounds.steps import Outcome
from tasks.topology import OWN

Read = Callable[[int | None, int], Mapping[str, Vectors]]
"""Gives what a partition carried away from a round, vectors (element,) by slot; empty if the round is None."""


def exchanged(work: Work, before: Outcome, partition: int, read: Read) -> Mapping[str, Vectors]:
    """What a partition carries into the next round, vectors (element,) by slot.

    Without a topology it is what the partition carried away from a round before. With one its network is the
    weighted sum of its neighbours' and its own, added in the order of partitions. A partition that has carried
    nothing yet counts with the parameters of the state.
    """
    sources = before.carry_from
    carry = read(sources.get(partition), partition)
    if work.topology is None or not sources:
        return carry
    exchange, partitions = work.before + before.state.round, work.partitions.split.partitions
    sums = {k: v.new_zeros(v.shape, dtype=accumulator(k)) for k, v in before.state.params.items()}
    for neighbour, weight in work.topology.weights(partition, partitions, exchange).items():
        other = carry if neighbour == partition else read(sources.get(neighbour), neighbour)
        for name, vector in other.get(OWN, before.state.params).items():
            sums[name] += vector.to(accumulator(name)) * weight
    return {**carry, OWN: {name: sums[name].to(vector.dtype) for name, vector in before.state.params.items()}}
