"""Steps of backprop: the one way by which maps take them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import nn

from storage.errors import UsageError
from tasks.data.examples import Examples
from tasks.maps.stepping.fusing import fused as fused_program
from tasks.maps.stepping.programs import Place
from tasks.maps.stepping.recording import Recorder
from tasks.maps.stepping.replaying import Replay, differs, replay_of, script_of, taken_back
from tasks.maps.stepping.steady import unsteady
from tasks.maps.stepping.watching import settings, watched

EAGER = 128
"""Steps of a kind that a process takes before it records one: recording costs about what so many replays gain."""

CHECKED = 2
"""Steps in which a replay must give the bits of the eager step, beside it, before it takes its place."""

LARGE = 1 << 24
"""Elements of parameters and batch from which the operations take so long that there is little to gain."""


KINDS = 16
"""Kinds of steps of an objective, by the shapes of a batch, beyond which recording each would not pay."""


class Minimised(Protocol):
    """A loss of a network's outputs, (), or of several networks side by side, (network,)."""

    def __hash__(self) -> int: ...

    @property
    def built(self) -> nn.Module:
        """The network as it was built, of which nothing is to be changed."""
        ...

    @property
    def alone(self) -> bool:
        """Whether a step of its network waits for nobody: then it may be recorded."""
        ...

    def value(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss; what is minimised is the sum."""
        ...


@dataclass
class Kind:
    """Steps of one kind in this process: how many were not replayed, the replay, and how often it was checked."""

    taken: int = 0
    checked: int = 0
    replay: Replay | None = None
    fused: Replay | None = None


@dataclass
class Known:
    """What a process knows of an objective's steps, by kind, or the reason for which none of them is replayed.

    What one step changes, another of another kind may read: so all of them are sound, or none is replayed.
    """

    kinds: dict[Any, Kind] = field(default_factory=dict)
    reason: str | None = None

    @property
    def replays(self) -> bool:
        """Whether there is a replay of any kind."""
        return any(kind.replay is not None for kind in self.kinds.values())


@functools.lru_cache(maxsize=16)
def known_of(objective: Minimised, fused: bool, settings: tuple[Any, ...]) -> Known:
    """What is known of an objective's steps, exact or fused ones, under some settings of torch."""
    return Known()


class Backprop:
    """Takes steps of a network: forward and backward pass, by a replay once it is known to give the same bits.

    With `lr`, each is a step of plain SGD and leaves no gradients; without, the parameters have them. One thread
    of a process at a time, as `pinned` sees to. `fused` ones have other bits, from the first step of any process:
    `UsageError` where they cannot be replayed.
    """

    def __init__(
        self, objective: Minimised, network: nn.Module, lr: float | None = None, fused: bool = False
    ) -> None:
        assert lr is not None or not fused
        self.objective, self.network, self.lr = objective, network, lr
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self._tensors = [t.detach() for t in (*network.parameters(), *network.buffers())]
        self._fused = fused
        talks = "ranks talk to each other within a step"
        self._known = known_of(objective, fused, settings()) if objective.alone else Known(reason=talks)
        self._kinds: dict[Any, Kind] = {}

    def __call__(self, batch: Examples) -> torch.Tensor:
        """One step on a batch; gives its loss, of shape (), or (network,)."""
        kind, known = self._kind(batch), self._known
        if self._fused:
            return self._taken_fused(kind, batch)
        if kind.replay is not None and kind.checked >= CHECKED and known.reason is None:
            return self._replayed(kind.replay, batch)
        kind.taken += 1
        if known.reason is not None or (kind.taken <= EAGER and not known.replays):
            return self._eager(batch)
        if kind.replay is None:
            return self._recorded(kind, batch)
        return self._compared(kind, kind.replay, batch)

    def _kind(self, batch: Examples) -> Kind:
        name = (self.lr is None, *((t.shape, t.stride(), t.dtype) for t in (batch.inputs, batch.targets)))
        if name not in self._kinds:  # once in each map
            kinds = self._known.kinds
            self._kinds[name] = kind = kinds.setdefault(name, Kind())
            if len(kinds) > KINDS and not self._fused:
                self._known.reason = self._known.reason or f"it has steps of more than {KINDS} kinds"
            self._known.reason = self._known.reason or (kind.replay.changed if kind.replay else None)
        return self._kinds[name]

    def _inputs(self, batch: Examples) -> list[torch.Tensor]:
        return [*self._tensors, batch.inputs, batch.targets]

    def _replayed(self, replay: Replay, batch: Examples) -> torch.Tensor:
        loss, *gradients = replay(self.lr or 0.0, self._inputs(batch))
        if self.lr is None:
            self._keep(replay.used, gradients)
        return loss

    def _keep(self, used: Sequence[int], gradients: Sequence[torch.Tensor]) -> None:
        for number, gradient in zip(used, gradients, strict=True):
            self.parameters[number].grad = gradient

    def _loss(self, batch: Examples) -> torch.Tensor:
        return self.objective.value(self.network(batch.inputs), batch.targets)

    def _eager(self, batch: Examples) -> torch.Tensor:
        loss = self._loss(batch)
        loss.sum().backward()
        if self.lr is not None:
            descend(self.parameters, self.lr)
        return loss.detach()

    def _compared(self, kind: Kind, replay: Replay, batch: Examples) -> torch.Tensor:
        """An eager step, beside which the replay is tried on copies."""
        stepped: list[torch.Tensor] = []

        def step() -> list[torch.Tensor]:
            loss = self._eager(batch)
            stepped.extend([loss, *(p.grad for p in self.parameters if p.grad is not None)])
            return stepped

        self._known.reason = differs(replay, self.lr or 0.0, self._inputs(batch), step)
        kind.checked += 1
        return stepped[0]

    def _recorded(self, kind: Kind, batch: Examples) -> torch.Tensor:
        """An eager step whose operations are written down, unless something speaks against it."""
        self._known.reason = self._unfit(batch)
        if self._known.reason is not None:
            return self._eager(batch)
        with watched() as watcher, Recorder(self._inputs(batch)) as recorder:
            loss = self._loss(batch)
            gradients = torch.autograd.grad(loss.sum(), self.parameters, allow_unused=True)
        used = tuple(number for number, gradient in enumerate(gradients) if gradient is not None)
        kept = [gradients[number] for number in used]
        program = recorder.program(loss, kept)
        if self.lr is not None:
            program = program.descending([self._place(number) for number in used])
        program = program.needed
        made = watcher.reason or recorder.reason or self._unfit(batch) or replay_of(program, used, watcher.reads)
        kind.replay, self._known.reason = (None, made) if isinstance(made, str) else (made, None)
        if self._fused and kind.replay is not None:
            kind.fused = replace(kind.replay, script=script_of(fused_program(program)))
        self._keep(used, [gradient.clone(memory_format=torch.contiguous_format) for gradient in kept])
        if self.lr is not None:
            descend(self.parameters, self.lr)
        return loss.detach()

    def _taken_fused(self, kind: Kind, batch: Examples) -> torch.Tensor:
        """A fused step, the first ones after exact ones that are taken back."""
        if kind.fused is None or kind.checked < CHECKED:
            self._prepare(kind, batch)
        assert kind.fused is not None and self.lr is not None
        return kind.fused(self.lr, self._inputs(batch))[0]

    def _prepare(self, kind: Kind, batch: Examples) -> None:
        """Record an exact step, or compare one to its replay; `UsageError` where there is none."""
        if kind.replay is None and self._known.reason is None:
            with taken_back(self._inputs(batch)):
                self._eager(batch)  # the first in a process may import
        with taken_back(self._inputs(batch)):
            if self._known.reason is None:
                self._compared(kind, kind.replay, batch) if kind.replay else self._recorded(kind, batch)
        if self._known.reason is not None:
            raise UsageError(f"fused steps are replays, and these stay eager: {self._known.reason}")

    def _place(self, number: int) -> Place:
        """Where a parameter to train stands among the inputs."""
        return next(Place(i) for i, p in enumerate(self.network.parameters()) if p is self.parameters[number])

    def _unfit(self, batch: Examples) -> str | None:
        """Why a step cannot be recorded, as far as network and batch tell."""
        tensors = self._inputs(batch)
        if sum(tensor.numel() for tensor in tensors) >= LARGE and not self._fused:
            return "its operations take so long that there is little to gain"
        own = (*self.network.parameters(), *self.network.buffers())
        if [t.data_ptr() for t in own] != [t.data_ptr() for t in self._tensors]:
            return "it replaces tensors of the network"
        inputs, targets, *others = (t.untyped_storage().data_ptr() for t in reversed(tensors))
        if inputs == targets or {inputs, targets} & set(others):
            return "inputs and targets lie in the same memory"
        if any(p.grad is not None or p._backward_hooks for p in self.parameters):
            return "parameters have hooks, or gradients from before"
        return unsteady(self.network, self.objective.built)


def descend(parameters: list[torch.nn.Parameter], lr: float) -> None:
    """A step of plain SGD, which clears the gradients."""
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-lr)
                parameter.grad = None
