"""Distils networks into one: each teaches on inputs of its own, without labels (Hinton, Vinyals and Dean 2015)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import ModelError, UsageError
from roundweave.storage.runs.run import Opener, open_stored
from roundweave.tasks.data.examples import Tensors
from roundweave.tasks.matching.tracing.exporting import Inputs, as_call
from roundweave.tasks.merging.gallery import Samples, loaded, read_network
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.networks.outputs import call, output_of
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.numerics.pinning import derive_seed, pinned

BATCH = 64
"""The inputs of each teacher in a step."""


def distil(
    student: nn.Module,
    teachers: Sequence[nn.Module],
    inputs: Sequence[Iterator[Tensors]],
    steps: int,
    learning_rate: float,
    classes: int | None,
) -> None:
    """Train a network by Adam to give what each teacher gives on batches (examples, …) of the teacher's own.

    The loss is the divergence of the outputs' distributions over `classes`, the axis of logits, or the mean
    squared difference if there is none; it is the mean over teachers. Over the `steps`, each of a batch of every
    teacher's, the learning rate falls to 0 along half a cosine (Loshchilov and Hutter 2017). Modules stay in
    evaluation mode, so that statistics are not changed. Raises `ModelError` if the loss is not finite.
    """
    student.eval()
    optimizer = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], learning_rate)
    schedule = CosineAnnealingLR(optimizer, steps)
    for step, batches in enumerate(zip(*inputs, strict=True), 1):
        losses = [_loss(student, *taught, classes) for taught in zip(teachers, batches, strict=True)]
        loss = torch.stack(losses).mean()
        if not loss.isfinite():
            # In float16 the small number by which Adam divides at least is 0.
            half = any(parameter.dtype == torch.float16 for parameter in student.parameters())
            advice = "--dtype float32" if half else "a smaller --distil-lr"
            raise ModelError(f"distilling gives a loss that is not finite in step {step}; give {advice}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def _loss(student: nn.Module, teacher: nn.Module, batch: Tensors, classes: int | None) -> torch.Tensor:
    with torch.no_grad():
        taught = output_of(call(teacher, batch))
    learned = output_of(call(student, batch))
    if classes is None:
        return functional.mse_loss(learned, taught)
    target, given = (each.movedim(classes, -1).flatten(0, -2).log_softmax(-1) for each in (taught, learned))
    return functional.kl_div(given, target, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class Teaching:
    """How networks teach a merged one: in how many `steps`, of which `learning_rate` at first, and on what.

    Each teaches on all training examples of its own, or, where `own` is empty, on noise of the shape of the
    example `inputs`. `classes` is the axis of logits, None if outputs are no logits.
    """

    model: ModelSpec
    own: tuple[Samples, ...]
    inputs: Inputs
    steps: int
    learning_rate: float
    classes: int | None
    seed: int

    def batches(self, number: int) -> Iterator[Tensors]:
        """Return the inputs (examples, …) on which a network teaches, a batch for each step."""
        seed = derive_seed(self.seed, "distil", number)
        if self.own:
            return self.own[number].batches(BATCH, self.steps, seed)
        generator, shapes = torch.Generator().manual_seed(seed), self.inputs
        if not isinstance(shapes, Mapping):
            shapes, *more = as_call(shapes)[0]
            if more:
                raise UsageError("distilling on noise reads inputs by their names; give --input a dict of them")
        return (moved(shapes, partial(_noise, generator)) for _ in range(self.steps))


def _noise(generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    if not like.is_floating_point():
        raise UsageError("distilling without data feeds noise, and these networks read integers; give --data")
    return torch.randn(BATCH, *like.shape[1:], generator=generator, dtype=like.dtype)


def write_distilled(
    teaching: Teaching, places: Sequence[str], start: str, out: str, _: int, opened: Opener = open_stored
) -> None:
    """Write the network of a file `start` after the networks of other files have taught it."""
    model = teaching.model
    with pinned(teaching.seed, threads=1):
        student, *teachers = (
            loaded(model, read_network(model, place, opened=opened)) for place in (start, *places)
        )
        batches = [teaching.batches(number) for number in range(len(teachers))]
        distil(student, teachers, batches, teaching.steps, teaching.learning_rate, teaching.classes)
        write_checkpoint(out, student.state_dict())
