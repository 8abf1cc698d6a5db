"""A network that a run begins with, in place of one with weights drawn from the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from storage.errors import CheckpointError
from storage.places.addresses import full_address
from storage.runs.checkpoints import check_checkpoint, fitted, lasting, open_checkpoint, outline
from storage.runs.names import WhichRound, run_name
from storage.runs.round import Round
from storage.runs.run import Run, open_run
from storage.values.digests import json_digest, tensor_digests
from storage.values.state import State
from storage.values.tensors import LazyTensors, Specs, Vectors, pack
from tasks.networks.objective import Objective


@dataclass(frozen=True)
class Start:
    """A file of named tensors or a stored round, as `reference`, and the digest of the tensors that it holds.

    The tensors are read when a run is created; what goes on, goes on from its own rounds.
    """

    reference: str
    digest: str

    def check(self, objective: Objective) -> None:
        """Raise `CheckpointError` unless the tensors fit the network of an objective, and are still the same."""
        self._tensors(objective)

    def state(self, objective: Objective) -> State:
        """The state before the first round, without the outer optimizer's memory; raises `CheckpointError`."""
        return objective.packed(self._tensors(objective))

    def _tensors(self, objective: Objective) -> LazyTensors:
        opened = open_checkpoint(self.reference)
        expected = outline(objective.network(objective.initial()).state_dict())
        check_checkpoint(self.reference, opened, expected)
        if _digest(opened) != self.digest:
            raise CheckpointError(f"{self.reference} is not what the run was to begin with; restore it")
        return fitted(opened, expected)


@dataclass(frozen=True)
class Fork(Start):
    """A stored round that a run begins with, and with the outer optimizer's memory, too.

    `chain` is that of its record, which vouches for all that led to it.
    """

    chain: str

    @property
    def parent(self) -> dict[str, Any]:
        """What a run's record tells of where it came from."""
        run, _, round = self.reference.rpartition("@")
        return {"run": run_name(run), "round": int(round), "chain": self.chain}

    def state(self, objective: Objective) -> State:
        """The state before the first round, with the memory of the stored one; raises `CheckpointError`."""
        return replace(super().state(objective), memory=_memory(self._round(), objective.layout.params))

    def run(self) -> Run:
        """The run that it is of."""
        return open_run(self.reference.rpartition("@")[0])

    def _round(self) -> Round:
        round = self.run().round(int(self.reference.rpartition("@")[2]))
        if round.chain != self.chain:
            raise CheckpointError(f"{self.reference} is not the round that the run was to begin with; restore it")
        return round


def _memory(round: Round, specs: Specs) -> dict[str, Vectors]:
    """The slots of a stored state's memory that have all these parameters, vectors (element,) in their types."""
    slots: dict[str, dict[str, torch.Tensor]] = {}
    for path, tensor in round.named.items():
        group, _, name = path.partition("/")
        if group == "memory":
            slot, _, name = name.partition("/")
            slots.setdefault(slot, {})[name] = tensor
    names = {spec.name for spec in specs}
    return {
        slot: pack(specs, {spec.name: tensors[spec.name].to(getattr(torch, spec.dtype)) for spec in specs})
        for slot, tensors in slots.items()
        if names <= tensors.keys()
    }


def find_start(place: str, root: str) -> Start:
    """The start that a file or a stored round is, as it is now; raises what `open_checkpoint` does."""
    reference = lasting(place, root)
    return Start(reference, _digest(open_checkpoint(reference)))


def find_fork(run: Run, which: WhichRound) -> Fork:
    """A stored round as the start of another run; raises `RoundMissing`, `StoreDamaged`."""
    round = run.round(which)
    return Fork(f"{full_address(run.address)}@{round.number}", _digest(round.tensors), round.chain)


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    return json_digest(list(tensor_digests(tensors).values()))
