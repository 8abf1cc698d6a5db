"""The common parts of all maps: seeded batches, backprop, SGD steps, and directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

from roundweave.storage.errors import MapAbandoned
from roundweave.storage.values.tensors import Specs, Vectors, views
from roundweave.tasks.data.examples import Examples, Tensors
from roundweave.tasks.data.loading import AnyExamples
from roundweave.tasks.networks.objective import Objective


class Minimised(Protocol):
    """Anything with a loss of a network, such as an objective."""

    def loss_of(self, network: Any, inputs: Tensors, targets: Tensors) -> torch.Tensor:
        """Return the loss on inputs and targets, (); for stacked networks one loss each, (network,)."""


def backprop(objective: Minimised, network: nn.Module, batch: Examples, share: float = 1.0) -> torch.Tensor:
    """Do one forward and one backward pass on a batch, add to the parameters' gradients, and return the loss.

    `share` multiplies the loss and the gradients.
    """
    loss = objective.loss_of(network, batch.inputs, batch.targets)
    loss = loss if share == 1.0 else loss * share
    (loss.sum() if loss.ndim else loss).backward()  # summing a single number would take a tenth of a short step
    return loss.detach()


def backprop_in_pieces(objective: Objective, network: nn.Module, batch: Examples, size: int) -> torch.Tensor:
    """Do as `backprop`, with at most `size` examples at once. Loss and gradients are means over the whole batch.

    A piece without labels that count is left out, unless no label of the whole batch counts.
    """
    whole, losses = objective.counted(batch.targets), []
    for piece in batch.slices(size):
        counted = objective.counted(piece.targets)
        if counted or not whole:
            losses.append(backprop(objective, network, piece, counted / (whole or 1)))
    return torch.stack(losses).sum()


@torch.no_grad()
def descend(parameters: Sequence[nn.Parameter], lr: float) -> None:
    """Take a step of plain SGD and clear the gradients."""
    given = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
    if given:  # a GPU is told of all at once
        torch._foreach_add_([*given], [*given.values()], alpha=-lr)
    for parameter in given:
        parameter.grad = None


@torch.no_grad()
def arrived_at(network: nn.Module, specs: Specs, own: Vectors) -> Vectors:
    """Return the parameters of a trained network, vectors (element,), in the memory of its own state `own`."""
    parameters = dict(network.named_parameters())
    for name, place in views(specs, own).items():
        if parameters[name].data_ptr() != place.data_ptr():  # an optimizer may give a parameter other memory
            place.copy_(parameters[name])
    return own


def minus(start: Vectors, arrived: Vectors) -> Vectors:
    """Return the start minus the end of training, vectors (element,), in the memory of the end."""
    return {name: torch.sub(vector, arrived[name], out=arrived[name]) for name, vector in start.items()}


IS_LET_GO: ContextVar[Callable[[], bool]] = ContextVar("is_let_go", default=lambda: False)
"""Tells a map, between two batches, whether nobody waits for its update any more. The map then ends."""


def batches(examples: AnyExamples, size: int | None, steps: int, seed: int, whole: int = 1) -> Iterator[Examples]:
    """Draw batches in passes over the examples. Each pass has an order of its own.

    Args:
        examples: The examples ``(example, *)`` of a partition.
        size: The number of examples in a batch; None takes all. The last batch of a pass may be smaller.
        steps: The number of batches.
        seed: Draws the orders.
        whole: A pass takes the most examples that are a multiple of this number. With `size`, all batches are
            full.

    Returns:
        The batches, one after the other. The next batch reuses the memory of the batch before.

    Example:
        >>> import torch
        >>> import roundweave as rw
        >>> examples = rw.Examples(torch.randn(10, 3), torch.arange(10))
        >>> [len(batch) for batch in rw.batches(examples, size=4, steps=3, seed=0)]
        [4, 4, 2]
    """
    for batch in examples.batches(size, steps, seed, whole):
        if IS_LET_GO.get()():
            raise MapAbandoned("nobody waits for this map any more")
        yield batch
