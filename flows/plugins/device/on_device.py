"""The mapper that computes another mapper's maps on a device, in another precision, or by compiled networks."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

import torch

from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import RoundFailed
from roundweave.storage.values.state import State, Update
from roundweave.tasks.algorithms.algebra import Map
from roundweave.tasks.compute.mapper import MapInput, Mapper
from roundweave.tasks.data.examples import Move
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.numerics.devices import AUTO, CPU, accelerator, find_device, moved
from roundweave.tasks.numerics.pinning import pinned

T = TypeVar("T")


@dataclass(frozen=True)
class OnDevice(Mapper):
    """Computes the maps of `inner` on a device of its process, with forward passes in the given precision.

    States and examples go there once and stay while they are in use; updates come back. If `compiled`, torch's
    compiler makes the code of the networks.
    """

    inner: Mapper
    precision: str
    compiled: bool

    def check_map(self, map: Map) -> None:
        self.inner.check_map(map)

    def check_examples(self, partitions: Any, partition: int) -> None:
        self.inner.check_examples(partitions, partition)

    def check(self, map: Map, objective: Objective, partitions: Any, partition: int, sizes: Sequence[int]) -> None:
        """Raise an error if the network cannot be trained in this way; it is tried on the processor."""
        self.inner.check(map, self._precise(objective), partitions, partition, sizes)

    def bound(self, objective: Objective, partitions: Any) -> Self:
        return replace(self, inner=self.inner.bound(objective, partitions))

    def on(self, each: Callable[[Callable[[], str]], Mapping[str, str]]) -> Self:
        """The mapper on an accelerator if all processes have one of a kind, or the processor, for ``auto``."""
        if self.device != AUTO:
            return self
        kinds = {*each(accelerator).values()}
        device = kinds.pop() if len(kinds) == 1 else CPU
        lacking = "" if device != CPU else ": not every process has an accelerator"
        notice(f"training on {device}{lacking}")
        return replace(self, device=device, recorded={"device": device})

    def __call__(self, map: Map, objective: Objective, state: State, inputs: Sequence[MapInput]) -> list[Update]:
        def mapped(to: Move) -> list[Update]:
            there = [(examples.on(to), moved(carry, to), seed) for examples, carry, seed in inputs]
            return moved(self.inner(map, self._precise(objective), moved(state, to), there), returned)

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


def resident(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The copy of a tensor on a device; it stays there for the next call while the tensor itself is in use.

    Neither may be changed.
    """
    copies = _copies(device)
    if tensor not in copies:
        # From pinned memory it is copied many times as fast, and beside what the device computes.
        source = tensor.pin_memory() if device.type == "cuda" else tensor
        copies[tensor] = source.to(device, non_blocking=True)
    return copies[tensor]


def returned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a device in this process's memory, which is pinned where that makes the copy faster."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def forget_copies(device: torch.device) -> None:
    """Free the memory of a device that `resident` has taken."""
    _copies(device).clear()
    getattr(torch.get_device_module(device), "empty_cache", lambda: None)()


@functools.cache
def _copies(device: torch.device) -> MutableMapping[torch.Tensor, torch.Tensor]:
    from torch.utils.weak import WeakTensorKeyDictionary

    copies: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()
    return copies


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed a device's generator, and have it compute in full precision by deterministic algorithms.

    The caller's settings are restored at the end.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS has other bits in each run
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    matmul, whole = torch.backends.cuda.matmul, torch.backends.cuda.matmul.allow_tf32
    torch.get_device_module(device).manual_seed_all(seed)
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before, whole
