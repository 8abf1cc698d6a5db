"""Given weights that a run begins with, instead of weights drawn from its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from roundweave.storage.errors import CheckpointError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.names import WhichRound, run_name, stored_round
from roundweave.storage.runs.run import Opener, StoredRun, open_stored
from roundweave.storage.values.digests import tensor_digests
from roundweave.storage.values.hashing import json_digest
from roundweave.storage.values.lazy import LazyTensors
from roundweave.storage.values.state import State
from roundweave.storage.values.tensors import Specs, Vectors, pack, views
from roundweave.tasks.data.meaning import NO_NAMES, Meaning
from roundweave.tasks.networks.objective import Objective

if TYPE_CHECKING:
    from roundweave.storage.runs.round import Round


@dataclass(frozen=True)
class Start:
    """A file of named tensors or a stored round, named by `reference`, and the digest of its tensors.

    The tensors are read when a run is created; a resumed run continues from its own rounds. `meaning` is what the
    stored round's run says of its examples, in whose order this run has its own; empty of a file. `opened` opens
    that run.
    """

    reference: str
    digest: str
    meaning: Meaning = field(default=NO_NAMES, kw_only=True)
    opened: Annotated[Opener, Field(exclude=True)] = field(
        default=open_stored, kw_only=True, compare=False, repr=False
    )

    def check(self, objective: Objective) -> None:
        """Raise `CheckpointError` if the tensors do not fit the objective's network, or have changed."""
        self._tensors(objective)

    def state(self, objective: Objective) -> State:
        """Return the state before the first round, without the outer optimizer's memory.

        Raises `CheckpointError`.
        """
        return objective.packed(self._tensors(objective))

    def _tensors(self, objective: Objective) -> LazyTensors:
        from roundweave.storage.runs.opening import check_checkpoint, fitted, open_checkpoint, outline
        from roundweave.tasks.networks.pretrained import names_in_network, renamed

        opened = open_checkpoint(self.reference, opened=self.opened)
        expected = outline(objective.built)
        tensors = renamed(opened, names_in_network(objective.built, opened))
        check_checkpoint(self.reference, tensors, expected)
        if _digest(opened) != self.digest:
            raise CheckpointError(f"{self.reference} is not what the run was to begin with; restore it")
        return fitted(tensors, expected)


@dataclass(frozen=True)
class Fork(Start):
    """A stored round that a run begins with, including the outer optimizer's memory.

    `chain` is the chain digest of the round's record, which vouches for all rounds before it.
    """

    chain: str

    @property
    def parent(self) -> dict[str, Any]:
        """The origin of a run as its record stores it: run, round and chain."""
        run, _, round = self.reference.rpartition("@")
        return {"run": run_name(run), "round": int(round), "chain": self.chain}

    def state(self, objective: Objective) -> State:
        """Return the state before the first round, with the stored round's memory. Raises `CheckpointError`."""
        round = self.run().round(int(self.reference.rpartition("@")[2]))
        if round.chain != self.chain:
            raise CheckpointError(f"{self.reference} is not the round that the run was to begin with; restore it")
        return replace(super().state(objective), memory=_memory(round, objective.layout.params))

    def run(self) -> StoredRun:
        """Open the run of the stored round."""
        return self.opened(self.reference.rpartition("@")[0], None)


def _memory(round: Round, specs: Specs) -> dict[str, Vectors]:
    """The slots of a stored state's memory, (element,) by dtype, in the order and the dtypes of some parameters.

    There are none if the stored state has not all of these parameters.
    """
    slots = {slot: views(round.layout.params, vectors) for slot, vectors in round.state.memory.items()}
    return {
        slot: pack(specs, {spec.name: tensors[spec.name].to(getattr(torch, spec.dtype)) for spec in specs})
        for slot, tensors in slots.items()
        if {spec.name for spec in specs} <= tensors.keys()
    }


def find_start(place: str, root: str, opened: Opener) -> Start:
    """Return the start for a file or a stored round, with its present digest.

    Raises the errors of `open_checkpoint`.
    """
    from roundweave.storage.runs.opening import lasting, open_checkpoint

    reference = lasting(place, root)
    stored = stored_round(reference)
    meaning = _meaning(open_stored(stored[0])) if stored else NO_NAMES
    digest = _digest(open_checkpoint(reference, opened=opened))
    return Start(reference, digest, meaning=meaning, opened=opened)


def find_fork(run: StoredRun, which: WhichRound, opened: Opener) -> Fork:
    """Return a stored round as the start of another run. Raises `RoundMissing`, `StoreDamaged`."""
    round = run.round(which)
    place = f"{full_address(run.address)}@{round.number}"
    return Fork(place, _digest(round.tensors), round.chain, meaning=_meaning(run), opened=opened)


def _meaning(run: StoredRun) -> Meaning:
    return Meaning.recorded(run.attributes["data"])


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    return json_digest(list(tensor_digests(tensors).values()))
