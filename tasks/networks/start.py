"""A network that a run begins with, in place of one with weights drawn from the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from storage.errors import CheckpointError
from storage.runs.checkpoints import check_checkpoint, fitted, lasting, open_checkpoint, outline
from storage.values.digests import json_digest, tensor_digest
from storage.values.state import State
from storage.values.tensors import LazyTensors, pack
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
        layout, tensors = objective.layout, self._tensors(objective)
        return State(
            params=pack(layout.params, tensors),
            buffers=pack(layout.buffers, tensors),
            frozen=pack(layout.frozen, tensors),
        )

    def _tensors(self, objective: Objective) -> LazyTensors:
        opened = open_checkpoint(self.reference)
        expected = outline(objective.network(objective.initial()).state_dict())
        check_checkpoint(self.reference, opened, expected)
        if _digest(opened) != self.digest:
            raise CheckpointError(f"{self.reference} is not what the run was to begin with; restore it")
        return fitted(opened, expected)


def find_start(place: str, root: str) -> Start:
    """The start that a file or a stored round is, as it is now; raises what `open_checkpoint` does."""
    reference = lasting(place, root)
    return Start(reference, _digest(open_checkpoint(reference)))


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    return json_digest([tensor_digest(name, tensors[name]) for name in sorted(tensors)])
