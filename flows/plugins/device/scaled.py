"""Training in float16: losses are scaled up, so that small gradients do not vanish in its narrow range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots
from roundweave.tasks.algorithms.algebra import says
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.maps.optimizers import trained_of
from roundweave.tasks.algorithms.maps.wrapping import Wrapping
from roundweave.tasks.networks.objective import Objective

SLOT = "loss_scale"
"""The carry of a scaler: a vector (element,) that begins with its scale and its good steps, then zeros."""

FIRST_SCALE, FACTOR, GOOD_STEPS = 2.0**16, 2.0, 2000
"""The defaults of torch.amp.GradScaler: the first scale, by what it changes, and after how many good steps."""


@dataclass
class Scaler:
    """The factor of a partition's losses, adapted as torch.amp.GradScaler does.

    A step with gradients that are not finite is skipped and halves the scale; 2000 good ones in a row double it.
    """

    scale: float = FIRST_SCALE
    good: int = 0
    skipped: int = 0

    def update(self, finite: bool) -> None:
        """Adapt the scale after a step whose gradients were all finite, or not."""
        if not finite:
            self.scale, self.good, self.skipped = self.scale / FACTOR, 0, self.skipped + 1
        elif self.good + 1 == GOOD_STEPS:
            self.scale, self.good = self.scale * FACTOR, 0
        else:
            self.good += 1


@dataclass(frozen=True)
class ScaledObjective(Objective):
    """An objective whose gradients are computed from scaled losses. Those that reach parameters are unscaled."""

    scaler: Scaler = field(default_factory=Scaler, compare=False)

    def over(self, state: State) -> nn.Module:
        network = super().over(state)
        for parameter in trained_of(network).values():
            parameter.register_hook(lambda gradient: gradient * (1 / self.scaler.scale))
        return network

    def loss_of(self, network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss_of(network, inputs, targets)
        if loss.requires_grad:  # not where a map asks for the loss alone
            loss.register_hook(lambda gradient: gradient * self.scaler.scale)
        return loss

    def accepts(self, parameters: Sequence[nn.Parameter]) -> bool:
        finite = [p.grad.isfinite().all() for p in parameters if p.grad is not None]
        accepted = not finite or bool(torch.stack(finite).all())
        self.scaler.update(accepted)
        if not accepted:
            for parameter in parameters:
                parameter.grad = None
        return accepted


@dataclass(frozen=True)
class Scaled(Wrapping):
    """Local steps, bound to a run, whose losses are scaled. A partition carries the scale and the good steps.

    Other maps are refused: a single gradient cannot be skipped without losing its partition's part of the round,
    and control variates and pushed sums count all steps. The scaler's two numbers have no order of units.

    >>> Scaled(LocalSteps(local_steps=5)).carry
    ('loss_scale',)
    """

    def __post_init__(self) -> None:
        if not isinstance(self.map, LocalSteps):
            raise UsageError(
                f"precision fp16 is for local steps, which it skips if gradients overflow, not for map "
                f"{type(self.map).__name__}; give bf16"
            )

    @property
    def carry(self) -> tuple[str, ...]:
        """What the map carries, and the scaler, each one vector (elements,) per dtype."""
        return (*self.map.carry, SLOT)

    @property
    def reads_extras_alone(self) -> bool:
        return says(self.map, "reads_extras_alone")

    def __call__(self, objective: Objective, state: State, examples: Any, carry: Slots, seed: int) -> Update:
        """The map's update. Its metrics also tell the scale after the round and how many steps were skipped."""
        [(dtype, params)] = state.params.items()
        if len(params) < 2:
            raise UsageError("precision fp16 needs a network of two parameters or more; give bf16")
        scale, good = carry[SLOT][dtype][:2].tolist() if SLOT in carry else (FIRST_SCALE, 0)
        scaler = Scaler(scale, int(good))
        update = self.map(ScaledObjective(**vars(objective), scaler=scaler), state, examples, carry, seed)
        kept = torch.zeros_like(params)
        kept[0], kept[1] = scaler.scale, scaler.good
        return replace(
            update,
            carry={**update.carry, SLOT: {dtype: kept}},
            metrics={**update.metrics, SLOT: scaler.scale, "skipped_steps": scaler.skipped},
        )
