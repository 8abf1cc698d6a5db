"""A recorded step in a form that torch runs without Python and autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from storage.values.tensors import same_bits
from tasks.maps.stepping.programs import Program

Tensors = Sequence[torch.Tensor]
Reads = Sequence[tuple[Mapping[str, Any], str, Any]]


@dataclass(frozen=True)
class Replay:
    """A step in TorchScript, its constants, and of which parameters to train, by number, it has gradients.

    `reads` are the names of files that the user's functions read, and what they stood for.
    """

    script: Callable[..., tuple[torch.Tensor, ...]]
    constants: tuple[torch.Tensor, ...]
    used: tuple[int, ...]
    reads: Reads

    @property
    def changed(self) -> str | None:
        """Which name stands for something else by now, None where none does."""
        for names, name, value in self.reads:
            if names.get(name) is not value:
                return f"{name} has changed since"
        return None

    def __call__(self, lr: float, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """What the program gives for a learning rate and its inputs."""
        # TorchScript's optimiser changes the bits (measured: from the first step), and gains nothing here.
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self.script(-lr, *tensors, *self.constants)


def script_of(program: Program) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The program in TorchScript; raises `RuntimeError` or `ValueError` for what that cannot say."""
    script: Callable[..., tuple[torch.Tensor, ...]] = torch.jit.CompilationUnit(program.source).step
    return script


def replay_of(program: Program, used: tuple[int, ...], reads: Reads) -> Replay | str:
    """The replay of a program, or why there is none."""
    try:
        script = script_of(program)
    except (RuntimeError, ValueError) as error:
        return f"TorchScript cannot say it: {error}"
    return Replay(script, tuple(program.constants.values()), used, tuple(reads))


@contextmanager
def taken_back(tensors: Tensors) -> Iterator[None]:
    """What is done within to tensors and to torch's generator is undone after it."""
    before, state = [tensor.clone() for tensor in tensors], torch.default_generator.get_state()
    yield
    for tensor, earlier in zip(tensors, before, strict=True):
        tensor.copy_(earlier)
    torch.default_generator.set_state(state)


def differs(replay: Replay, lr: float, tensors: Tensors, step: Callable[[], Tensors]) -> str | None:
    """In what a replay differs from the eager `step`, which is taken; None where it gives the same bits.

    `tensors` are what the step reads and changes; it returns its loss, and its gradients where they are kept.
    """
    copies, generator = [tensor.clone() for tensor in tensors], torch.default_generator
    before = generator.get_state()
    try:
        replayed, reason = replay(lr, copies), None
    except RuntimeError as error:
        replayed, reason = (), f"the replay fails: {error}"
    after = generator.get_state()
    generator.set_state(before)
    stepped = step()
    if reason is not None:
        return reason
    if not same_bits(after, generator.get_state()):
        return "the replay draws other random numbers"
    if not _are_same(copies, tensors) or not _are_same(replayed, stepped):
        return "the replay gives other bits"
    return None


def _are_same(some: Tensors, others: Tensors) -> bool:
    return len(some) == len(others) and all(map(same_bits, some, others))
