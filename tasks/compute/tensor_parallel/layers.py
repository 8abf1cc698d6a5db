"""Linear layers whose units are divided among ranks (Shoeybi et al. 2019, section 3; Krizhevsky 2014).

A column-parallel layer takes inputs that all ranks have, and each rank computes its own units from them. A
row-parallel layer takes each rank's units, and adds up the outputs of all ranks. Between the two, and for examples
that only one rank has, each rank draws its own random numbers. Everywhere else all ranks draw the same.
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
    """How the layers of a rank's network exchange tensors with other ranks, and which random numbers they draw."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self.lengths: list[int] = []
        self._common: torch.Tensor | None = None
        self._seed: int | None = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, (*shape), added in the order of the ranks."""
        return _added(self._of_all(tensor))

    def gather(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        """The ranks' tensors joined along an axis."""
        return torch.cat(self._of_all(tensor), axis)

    def examples(self, batch: torch.Tensor) -> torch.Tensor:
        """This rank's examples of a batch, (example, *), for which it draws random numbers of its own."""
        self.go_apart()
        self.lengths = [end - first for first, end in even(len(batch), self.group.ranks)]
        parts: Sequence[torch.Tensor] = batch.split(self.lengths)
        return parts[self.group.rank]

    def scatter_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of this rank's examples in the sum of the ranks' tensors, each (example, *)."""
        parts = self.group.scatter([_Sent(part) for part in tensor.split(self.lengths)])
        return _added([part.tensor for part in parts])

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


class _Broadcast(torch.autograd.Function):
    """Passes on inputs that all ranks have. Its backward pass gives the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, line: Line) -> torch.Tensor:
        ctx.line = line
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.line.sum(gradients[0]), None


class _AllReduce(torch.autograd.Function):
    """Gives the sum over the ranks. Its backward pass gives each rank the same gradient."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, line: Line) -> torch.Tensor:
        return line.sum(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class _AllGather(torch.autograd.Function):
    """Joins the examples of all ranks to a batch.

    Its backward pass gives each rank the gradients of its own examples, summed over the ranks.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, line: Line) -> torch.Tensor:
        ctx.line = line
        return line.gather(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.line.scatter_sum(gradients[0]), None


class _Split(torch.autograd.Function):
    """Takes a rank's slice of the last axis of inputs that all ranks have.

    Its backward pass joins the gradients of all ranks' slices.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, line: Line, first: int, size: int) -> torch.Tensor:
        ctx.line = line
        return inputs.narrow(-1, first, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.line.gather(gradients[0], -1), None, None, None


def begun(inputs: torch.Tensor, line: Line) -> torch.Tensor:
    """Pass on inputs (*shape) that all ranks have, so that their gradient is summed over the ranks."""
    shared: torch.Tensor = _Broadcast.apply(inputs, line) if inputs.requires_grad else inputs
    return shared


def summed(outputs: torch.Tensor, line: Line, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The sum of outputs (*shape) over the ranks, plus a bias that all ranks have."""
    total: torch.Tensor = _AllReduce.apply(outputs, line)
    return total if bias is None else total + bias


class ColumnParallel(nn.Linear):
    """A linear layer that computes a rank's share of the units.

    If it `joins`, its inputs are the rank's examples, and it first joins those of all ranks to the whole batch.
    """

    line: Line
    joins: bool = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (…, inputs) to (…, the rank's units)."""
        if self.joins:
            self.line.come_together()
            inputs = _AllGather.apply(inputs, self.line)
        else:
            inputs = begun(inputs, self.line)
        self.line.go_apart()
        return functional.linear(inputs, self.weight, self.bias)


class RowParallel(nn.Linear):
    """A linear layer that takes a rank's share of the units, and gives outputs that all ranks have."""

    line: Line

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (…, the rank's units) to (…, outputs)."""
        self.line.come_together()
        return summed(functional.linear(inputs, self.weight), self.line, self.bias)


class InputParallel(nn.Linear):
    """A linear layer that uses a rank's slice of the inputs, which begins at index `first`."""

    line: Line
    first: int

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (…, inputs) to (…, outputs), which all ranks have."""
        own = _Split.apply(inputs, self.line, self.first, self.weight.shape[1])
        return summed(functional.linear(own, self.weight), self.line, self.bias)
