"""The networks that partitions keep in decentralised training: their exchange before a round, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roundweave.storage.errors import UsageError
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.tensors import Vectors, views
from roundweave.tasks.algorithms.topology import OWN, own_slots
from roundweave.tasks.numerics.dtypes import accumulator
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.steps import Outcome

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


def own_params(work: Work, store: RoundStore, after: Outcome) -> Callable[[int], Vectors] | None:
    """Gives the parameters of each partition's network after a round, (element,) by dtype; None if it has none.

    They are those of the state, but for what the partition carries of a network of its own. A parameter server's
    partitions have none, as what they carry is stored only with their round. Raises `UsageError` for a slot of
    a layer that is not there.
    """
    slots, specs = own_slots(work.algorithm.map.carry), work.objective.layout.params
    held = {s: [spec.name for spec in specs if f"{OWN}.{spec.name}.".startswith(f"{s}.")] for s in slots}
    if lacking := [slot for slot, names in held.items() if not names]:
        raise UsageError(f"the map carries {lacking[0]}, and the network has no such layer; name one that it has")

    def read(partition: int) -> Vectors:
        source, params = after.carry_from.get(partition), {k: v.clone() for k, v in after.state.params.items()}
        carry = {} if source is None else store.tensors.read_carry(source, partition)
        for slot, vectors in carry.items():
            for name in held.get(slot, ()):
                views(specs, params)[name].copy_(views(specs, vectors)[name])
        return params

    return read if slots and not work.algorithm.when.asynchronous else None
