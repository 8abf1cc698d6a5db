"""Layers of which each rank has a share of the units (Shoeybi et al. 2019, section 3; Krizhevsky 2014).

A layer ``into`` units begins with what all ranks have, and each makes its own units of it; a layer ``out`` of them
adds up what all ranks make of theirs. Between the two, and for examples of its own, a rank draws random numbers of
its own; all others are drawn alike on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from storage.values.tensors import Record
from tasks.compute.communicator import Communicator
from tasks.compute.tensor_parallel.shares import even
from tasks.numerics import derive_seed


class Line:
    """What the layers of a rank's network say to those of the other ranks."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self.lengths: list[int] = []
        self._common: torch.Tensor | None = None
        self._seed: int | None = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, (*shape), in their order."""
        return _added(self._of_all(tensor))

    def gather(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        """The ranks' tensors one after the other along an axis."""
        return torch.cat(self._of_all(tensor), axis)

    def examples(self, batch: torch.Tensor) -> torch.Tensor:
        """This rank's share of a batch, (its examples, *), for which it draws random numbers of its own."""
        self.go_apart()
        self.lengths = [end - first for first, end in even(len(batch), self.group.ranks)]
        parts: Sequence[torch.Tensor] = batch.split(self.lengths)
        return parts[self.group.rank]

    def scatter_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, of which each gets the rows of its examples."""
        parts = self.group.scatter([_Sent(part) for part in tensor.split(self.lengths)])
        return _added([part.tensor for part in parts])

    def _of_all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [told.tensor for told in self.group.all_gather(_Sent(tensor.detach()))]

    def go_apart(self) -> None:
        """From here on the rank draws random numbers of its own.

        They follow from one that all ranks draw: where activations are computed again, they are the same again.
        """
        if not self._is_apart:
            self._seed = derive_seed(int(torch.randint(2**62, ())), "rank", self.group.rank)
            self._common = torch.get_rng_state()
            torch.default_generator.manual_seed(self._seed)

    def come_together(self) -> None:
        """From here on all ranks draw the same random numbers."""
        if self._is_apart:
            assert self._common is not None
            torch.set_rng_state(self._common)

    @property
    def _is_apart(self) -> bool:
        """Told by the generator: to compute activations again, torch sets it to where it was."""
        return torch.initial_seed() == self._seed


def _added(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum of tensors, (*shape), from the first to the last."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class _Sent(Record):
    """A tensor on its way to another rank."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.contiguous()


class _Broadcast(torch.autograd.Function):
    """The same inputs on all ranks; backward, the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, line: Line) -> torch.Tensor:
        ctx.line = line
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.line.sum(gradients[0]), None


class _AllReduce(torch.autograd.Function):
    """The sum over the ranks; backward, the same gradient for each."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, line: Line) -> torch.Tensor:
        return line.sum(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class _AllGather(torch.autograd.Function):
    """The whole batch from each rank's examples; backward, the sums of the gradients of these."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, line: Line) -> torch.Tensor:
        ctx.line = line
        return line.gather(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.line.scatter_sum(gradients[0]), None


class _Split(torch.autograd.Function):
    """A rank's slice of the last axis of what all ranks have; backward, the gradients of all slices."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, line: Line, first: int, size: int) -> torch.Tensor:
        ctx.line = line
        return inputs.narrow(-1, first, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.line.gather(gradients[0], -1), None, None, None


def begun(inputs: torch.Tensor, line: Line) -> torch.Tensor:
    """Inputs (*shape) that all ranks have, of which each makes its own units."""
    shared: torch.Tensor = _Broadcast.apply(inputs, line) if inputs.requires_grad else inputs
    return shared


def summed(outputs: torch.Tensor, line: Line, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The sum over the ranks of outputs (*shape), and a bias, which all ranks have."""
    total: torch.Tensor = _AllReduce.apply(outputs, line)
    return total if bias is None else total + bias


class ColumnParallel(nn.Linear):
    """A layer that gives a rank its share of the units."""

    line: Line
    joins: bool = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(…, inputs) -> (…, the rank's units); where it `joins`, those of the ranks' shares of the batch."""
        if self.joins:
            self.line.come_together()
            inputs = _AllGather.apply(inputs, self.line)
        else:
            inputs = begun(inputs, self.line)
        self.line.go_apart()
        return functional.linear(inputs, self.weight, self.bias)


class RowParallel(nn.Linear):
    """A layer that takes a rank's share of the units."""

    line: Line

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(…, the rank's units) -> (…, outputs), which all ranks have."""
        self.line.come_together()
        return summed(functional.linear(inputs, self.weight), self.line, self.bias)


class InputParallel(nn.Linear):
    """A layer that takes a rank's slice of its inputs, from the `first` on."""

    line: Line
    first: int

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(…, inputs), which all ranks have -> (…, outputs), which all ranks have."""
        own = _Split.apply(inputs, self.line, self.first, self.weight.shape[1])
        return summed(functional.linear(own, self.weight), self.line, self.bias)
