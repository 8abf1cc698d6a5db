"""Rounds of ranks that share a network, which is read and stored some rows of a tensor at a time.

All ranks must call each function together. Rank 0 writes whole tensors from the shares of all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from roundweave.storage.rounds.commits import Commit, UpdateRecord
from roundweave.storage.rounds.pruned import there
from roundweave.storage.values.digests import grouped_digest, update_groups
from roundweave.storage.values.state import Update
from roundweave.storage.values.tensors import Record, Specs, TensorSpec, Vectors, to_numpy, vector_sizes, views
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.compute.compute import Compute
from roundweave.tasks.compute.tensor_parallel.layers import ShareObjective
from roundweave.tasks.compute.tensor_parallel.shares import Shares
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.numerics.devices import most_memory
from roundweave.tasks.process_group.group import Group
from roundweave.tasks.rounds.engine import BlockData, Engine, Report
from roundweave.tasks.rounds.guard import NOTHING, checked_update
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed, stores_state
from roundweave.tasks.rounds.persistence.mapping import (
    exchanging,
    map_block,
    persist_and_fold,
    read_carry,
    record_of,
)
from roundweave.tasks.rounds.persistence.outcomes import outcome_of
from roundweave.tasks.rounds.steps import BlockResult, Mapped, MapRaised, Outcome

PART_BYTES = 1 << 20
"""How many bytes of a shared tensor are in one process at a time; or one row, if it is larger."""


def rows_at_once(spec: TensorSpec) -> int:
    """How many rows of a shared tensor are in one process at a time."""
    itemsize: int = getattr(torch, spec.dtype).itemsize
    return max(1, PART_BYTES * spec.shape[0] // max(1, spec.size * itemsize))


@dataclass(frozen=True)
class Rows(Record):
    """Some rows of a tensor that are sent to the rank that writes, (row, *)."""

    values: torch.Tensor


@dataclass(frozen=True)
class NetworkShare:
    """A rank's share of a network that ranks share: how it is read, mapped and stored.

    `whole` is the job on the whole network, and `group` are the ranks that share it. `storing` are the same ranks:
    through this communicator they send to rank 0 what it writes.
    """

    whole: Job
    group: Communicator
    storing: Communicator

    @functools.cached_property
    def shares(self) -> Shares:
        """What each rank has of the network."""
        shares = self.whole.work.compute.shares
        assert shares is not None
        return shares

    @functools.cached_property
    def job(self) -> Job:
        """The job on this share of the network."""
        work = self.whole.work
        objective = ShareObjective.of(work.objective, self.shares, self.group, apart=True)
        return replace(self.whole, work=replace(work, objective=objective, compute=Compute(work.threads)))

    def read_outcome(self, round: int) -> Outcome:
        """The rank's share of the outcome of a committed round, verified; computed again if it is not stored."""
        store, rank = self.job.attempt.open(), self.group.rank
        if not there(store.log, store.tensors.pruned(), round):
            whole = outcome_of(self.whole.work, store, round)
            return replace(whole, state=self.shares.state(whole.state, rank))

        commit = store.log.read(round)
        state = store.tensors.read_state_by(commit, self.shares.layout_of(rank), self._read)
        return Outcome(state, carry_from=commit.carry_from, server=commit.server)

    def map_and_persist(self, before: Outcome, data: BlockExamples, block: int) -> BlockResult:
        """Map a block with the ranks that share the network, store its updates, and fold this rank's share."""
        job, round = self.job, before.state.round + 1
        carry = exchanging(job.work, before, self._read_carry)
        mapped = map(partial(self._settled, before), map_block(job, before.state, data, carry))
        return persist_and_fold(job, round, block, mapped, self._persist)

    def _read(self, commit: Commit, path: str, into: torch.Tensor) -> None:
        """Read the rank's share of a tensor of a committed state, with only some rows in memory at a time."""
        tensors, rank, spec = self.job.attempt.open().tensors, self.group.rank, self._spec(path)
        cut = self.shares.cuts.get(spec.name)
        if cut is None:
            into.copy_(tensors.read_tensor(commit, path))
            return
        first = 0
        for rows in tensors.read_rows(commit, path, rows_at_once(spec)):
            end = first + len(rows)
            begin, until = cut.rows_of(rank, first, end)
            into[begin:until] = cut.rows(first, end).share(rows, rank)
            first = end

    @functools.cached_property
    def _specs(self) -> dict[str, TensorSpec]:
        """The whole network's tensors by name."""
        layout = self.shares.layout
        return {spec.name: spec for spec in (*layout.params, *layout.buffers, *layout.frozen)}

    @functools.cached_property
    def _frozen(self) -> dict[str, str]:
        """The digests of the frozen tensors, which no round changes."""
        tensors = self.job.attempt.open().log.read(0).tensors if self.shares.layout.frozen else {}
        return {path: digest for path, digest in tensors.items() if path.startswith("frozen/")}

    def _read_carry(self, source: int | None, partition: int) -> Mapping[str, Vectors]:
        return self.shares.slots(read_carry(self.job, source, partition), self.group.rank)

    def persisted(self, computed: Computed) -> Computed:
        """A round whose state is written if it is to be stored. Only on rank 0 are the digests complete."""
        state, attempt, digests = computed.outcome.state, self.job.attempt, dict(self._frozen)
        may_stop = attempt.may_stop and attempt.scored(state.round)
        stored = stores_state(self.job, state.round, may_stop) and not attempt.open().log.has(state.round)
        for path, tensor in state.named(self.job.work.objective.layout).items():
            if not path.startswith("frozen/"):
                spec = self._spec(path)
                digests[path] = self._stream(path, (state.round,), spec.shape, self._parts(spec, tensor), stored)
        return replace(computed, digests=digests, stored=stored)

    def _settled(self, before: Outcome, mapped: Mapped) -> Mapped:
        """The map's result, refused on all ranks if one refuses it.

        If the update of any rank has not the shape to be stored, nothing of it is stored. Raises `MapRaised` if
        the map raised: the other ranks wait for this one within their maps, so none can go on.
        """
        if mapped.raised:
            raise MapRaised(str(mapped.refused))
        of_all = self.group.all_gather((mapped.refused, mapped.update is not NOTHING))
        refused = next((reason for reason, _ in of_all if reason), None)
        if not all(there for _, there in of_all):
            return replace(mapped, refused=refused, update=NOTHING)
        return replace(mapped, refused=refused and (self._whole_reason(before, mapped.update) or refused))

    def _whole_reason(self, before: Outcome, update: Update) -> str | None:
        """Why the whole network's update is refused that the ranks' shares make up, as one process would say it.

        It is in the memory of each rank, but only where some rank refuses its share.
        """
        if not update.weight:
            return None
        parts = self.group.all_gather((update, Update({}, before.state.buffers, weight=0)))
        whole, before_it = map(self.shares.joined, zip(*parts, strict=True))
        slots = tuple(whole.carry), tuple(whole.extras)
        return checked_update(self.shares.layout, whole, before_it.buffers, *slots)[1]

    def _persist(self, round: int, mapped: Mapped) -> Callable[[], UpdateRecord]:
        """Write an update if it is to be stored. Only on rank 0 does the record have the digest."""
        if not self.job.stores_update(round, mapped.refused):
            unstored = record_of(mapped, stored=False)
            return lambda: unstored
        digests: dict[str, dict[str, str]] = {}
        for group, vectors in update_groups(mapped.update).items():
            specs = self.shares.layout.buffers if group == "updates/buffers" else self.shares.layout.params
            digests[group] = {
                dtype: self._persist_vector(group, dtype, specs, vectors, round, mapped) for dtype in vectors
            }
        record = record_of(mapped, digest=grouped_digest(digests))
        return lambda: record

    def _persist_vector(
        self, group: str, dtype: str, specs: Specs, vectors: Vectors, round: int, mapped: Mapped
    ) -> str:
        """Write one vector of an update, (element,), which holds several tensors, and return its digest."""
        own = tuple(self.shares.spec(spec, self.group.rank) for spec in specs)
        named = views([spec for spec in own if spec.dtype == dtype], {dtype: vectors[dtype]})
        parts = (part for spec in specs if spec.dtype == dtype for part in self._parts(spec, named[spec.name]))
        index, shape = (round, mapped.partition), (vector_sizes(specs)[dtype],)
        return self._stream(f"{group}/{dtype}", index, shape, parts, stored=True)

    def _stream(
        self, path: str, index: tuple[int, ...], shape: tuple[int, ...], parts: Iterator[np.ndarray], stored: bool
    ) -> str:
        """The digest of a whole tensor, (*shape), from its parts, which is written if it is `stored`, on rank 0.

        Other ranks only send their shares, and return an empty text.
        """
        if self.group.rank == 0:
            return self.job.attempt.open().tensors.stream(path, index, shape, parts, stored)
        for _ in parts:
            pass
        return ""

    def _parts(self, spec: TensorSpec, own: torch.Tensor) -> Iterator[np.ndarray]:
        """Yield a whole tensor, some rows at a time, on rank 0. Other ranks send it their shares of the rows."""
        cut, rank = self.shares.cuts.get(spec.name), self.storing.rank
        if cut is None:
            yield to_numpy(own)
            return
        step = rows_at_once(spec)
        for first in range(0, spec.shape[0], step):
            end = min(first + step, spec.shape[0])
            begin, until = cut.rows_of(rank, first, end)
            sent = [Rows(own[begin:until]), *[None] * (self.storing.ranks - 1)]
            parts = [rows.values for rows in self.storing.scatter(sent) if rows is not None]
            if rank == 0:
                whole = own.new_empty((end - first, *spec.shape[1:]))
                for sender, part in enumerate(parts):
                    cut.rows(first, end).place(whole, part, sender)
                yield to_numpy(whole)

    def _spec(self, path: str) -> TensorSpec:
        """The whole tensor at a path of a state, such as ``params/NAME`` or ``memory/SLOT/NAME``."""
        kind, _, rest = path.partition("/")
        return self._specs[rest.partition("/")[2] if kind == "memory" else rest]


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
        yield share.persisted(computed) if data.block == 0 else computed
