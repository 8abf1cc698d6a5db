"""Linear layers whose units are divided among ranks (Shoeybi et al. 2019, section 3; Krizhevsky 2014).

A column-parallel layer takes inputs that all ranks have, and each rank computes its own units from them. A
row-parallel layer takes each rank's units, and adds up the outputs of all ranks. Between the two, and for examples
that only one rank has, each rank draws its own random numbers. Everywhere else all ranks draw the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from storage.values.tensors import Record
from tasks.compute.communicator import Communicator
from tasks.compute.tensor_parallel.shares import even
from tasks.numerics import derive_seed


class Exchange:
    """How the layers of a rank's network exchange tensors with other ranks, and which random numbers they draw."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self._lengths: list[int] = []
        self._common: torch.Tensor | None = None
        self._seed: int | None = None

    def begun(self, inputs: torch.Tensor) -> torch.Tensor:
        """Pass on inputs (*shape) that all ranks have, so that their gradient is summed over the ranks."""
        return _differentiable(inputs, lambda x: x.view_as(x), self.sum) if inputs.requires_grad else inputs

    def summed(self, outputs: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The sum of outputs (*shape) over the ranks, plus a bias that all ranks have."""
        total = _differentiable(outputs, self.sum, lambda gradient: gradient)
        return total if bias is None else total + bias

    def joined(self, inputs: torch.Tensor) -> torch.Tensor:
        """All ranks' examples (example, *) as one batch; each rank gets the gradients of its own examples."""
        return _differentiable(inputs, self._gather, self._sum_of_own)

    def sliced(self, inputs: torch.Tensor, first: int, size: int) -> torch.Tensor:
        """A rank's slice of the last axis of inputs that all ranks have; gradients of all slices are joined."""
        return _differentiable(
            inputs, lambda x: x.narrow(-1, first, size), lambda gradient: self._gather(gradient, -1)
        )

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, (*shape), added in the order of the ranks."""
        return _added(self._of_all(tensor))

    def own_examples(self, batch: torch.Tensor) -> torch.Tensor:
        """This rank's examples of a batch, (example, *), for which it draws random numbers of its own."""
        self.go_apart()
        self._lengths = [end - first for first, end in even(len(batch), self.group.ranks)]
        parts: Sequence[torch.Tensor] = batch.split(self._lengths)
        return parts[self.group.rank]

    def _sum_of_own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of this rank's examples in the sum of the ranks' tensors, each (example, *)."""
        parts = self.group.scatter([_Sent(part) for part in tensor.split(self._lengths)])
        return _added([part.tensor for part in parts])

    def _gather(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        """The ranks' tensors joined along an axis."""
        return torch.cat(self._of_all(tensor), axis)

    def _of_all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [sent.tensor for sent in self.group.all_gather(_Sent(tensor.detach()))]

    def go_apart(self) -> None:
        """From here on this rank draws random numbers of its own.

        Their seed is drawn by all ranks alike. When checkpointed activations are computed again, it is the same.
        """
        if not self._is_apart:
            self._seed = derive_seed(int(torch.randint(2**62, ())), "rank", self.group.rank)
            self._common = torch.get_rng_state()
            torch.default_generator.manual_seed(self._seed)

    def come_together(self) -> None:
        """From here on all ranks draw the same random numbers again."""
        if self._is_apart:
            assert self._common is not None
            torch.set_rng_state(self._common)

    @property
    def _is_apart(self) -> bool:
        """Whether the generator has this rank's own seed.

        It is asked of the generator, as torch sets its state back when it computes activations again.
        """
        return torch.initial_seed() == self._seed


def _added(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum of tensors, (*shape), added from the first to the last."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class _Sent(Record):
    """A tensor that is sent to another rank."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.contiguous()


Operation = Callable[[torch.Tensor], torch.Tensor]


class _Differentiable(torch.autograd.Function):
    """Applies one operation to a tensor, and in the backward pass another one to its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forward: Operation, backward: Operation) -> torch.Tensor:
        ctx.operation = backward
        return forward(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.operation(gradients[0]), None, None


def _differentiable(tensor: torch.Tensor, forward: Operation, backward: Operation) -> torch.Tensor:
    made: torch.Tensor = _Differentiable.apply(tensor, forward, backward)
    return made


class ColumnParallel(nn.Linear):
    """A linear layer that computes a rank's share of the units.

    If it `joins`, its inputs are the rank's examples, and it first joins those of all ranks to the whole batch.
    """

    exchange: Exchange
    joins: bool = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (…, inputs) to (…, the rank's units)."""
        if self.joins:
            self.exchange.come_together()
        inputs = self.exchange.joined(inputs) if self.joins else self.exchange.begun(inputs)
        self.exchange.go_apart()
        return functional.linear(inputs, self.weight, self.bias)


class RowParallel(nn.Linear):
    """A linear layer that takes a rank's share of the units, and gives outputs that all ranks have."""

    exchange: Exchange

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (…, the rank's units) to (…, outputs)."""
        self.exchange.come_together()
        return self.exchange.summed(functional.linear(inputs, self.weight), self.bias)


class InputParallel(nn.Linear):
    """A linear layer that uses a rank's slice of the inputs, which begins at index `first`."""

    exchange: Exchange
    first: int

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (…, inputs) to (…, outputs), which all ranks have."""
        own = self.exchange.sliced(inputs, self.first, self.weight.shape[1])
        return self.exchange.summed(functional.linear(own, self.weight), self.bias)
