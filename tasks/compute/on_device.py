"""The mapper that computes another mapper's maps on a device, in another precision, or by compiled networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from roundweave.storage.errors import RoundFailed
from roundweave.storage.values.state import State, Update
from roundweave.tasks.compute.mapper import MapInput, Mapper
from roundweave.tasks.data.examples import Examples, Move
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.numerics.devices import find_device, forget_copies, moved, resident, returned, seeded
from roundweave.tasks.numerics.pinning import pinned

T = TypeVar("T")


@dataclass(frozen=True)
class OnDevice(Mapper):
    """Computes the maps of `inner` on a device of its process, with forward passes in the given precision.

    States and examples go there once and stay while they are in use; updates come back. If `compiled`, torch's
    compiler makes the code of the networks.
    """

    inner: Mapper
    device: str
    precision: str
    compiled: bool

    def check(self, objective: Objective, examples: Examples, sizes: Sequence[int]) -> None:
        """Raise an error if the network cannot be trained in this way; it is tried on the processor."""
        self.inner.check(self._precise(objective), examples, sizes)

    def __call__(self, objective: Objective, state: State, inputs: Sequence[MapInput]) -> list[Update]:
        def mapped(to: Move) -> list[Update]:
            there = [(examples.on(to), moved(carry, to), seed) for examples, carry, seed in inputs]
            return moved(self.inner(self._precise(objective), moved(state, to), there), returned)

        return self._there(inputs[0][2], mapped)

    def scored(self, objective: Objective, state: State, function: Callable[[Objective, State], T]) -> T:
        return self._there(0, lambda to: function(self._precise(objective), moved(state, to)))

    def _precise(self, objective: Objective) -> Objective:
        return replace(objective, precision=self.precision, compiled=self.compiled)

    def _there(self, seed: int, function: Callable[[Move], T]) -> T:
        """Call a function with one that brings tensors to the device, which is seeded and set up for it.

        Raises `RoundFailed` if the device has not enough memory even without what lay there before.
        """
        device = find_device(self.device)
        if device.type == "cpu":
            return function(lambda tensor: tensor)
        for _ in range(2):
            with (
                suppress(torch.OutOfMemoryError),  # it holds what was computed so far, and is gone after the block
                pinned(seed, torch.get_num_threads()),
                seeded(device, seed),
            ):
                return function(partial(resident, device=device))
            forget_copies(device)
        raise RoundFailed(
            f"{device} has too little memory for this network and a partition; give a smaller batch_size, more "
            "partitions, or --precision bf16"
        )
