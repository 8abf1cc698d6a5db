"""Local training on a partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BeforeValidator, Field
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import at_commas
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, Vectors, views
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.algorithms.algebra import Map
from roundweave.tasks.algorithms.applies.schedules import Schedule, Scheduled
from roundweave.tasks.algorithms.maps.backprop import arrived_at, backprop, backprop_in_pieces, batches, minus
from roundweave.tasks.algorithms.maps.optimizers import (
    Slot,
    Stepper,
    check_name,
    check_steps,
    decay_groups,
    find_slots,
    kept_optimizer,
    made_optimizer,
    optimizer_of,
    own_optimizer,
    set_state,
    state_of,
    trained_of,
)
from roundweave.tasks.data.examples import Examples, used_of
from roundweave.tasks.networks.objective import Objective, buffers_of, copied, mean_loss
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.own_code.code import Code

Optimizer = Annotated[
    str | Code,
    Field(description="local optimizer: a class of torch.optim, or FILE.py:fn that makes one for a network"),
    BeforeValidator(kept_optimizer, json_schema_input_type=str | Code),
]

WHOLE = ("Adafactor", "Muon")
"""Optimizers of torch that compute an element's step from more than the element's own gradient."""

Term = Callable[[str, torch.Tensor], torch.Tensor]
"""A term to add to a parameter's gradient, given its name and value. All three have the parameter's shape."""


@dataclass(frozen=True)
class LocalSgd(Scheduled, Map):
    """Plain SGD on a partition, the base class of all local training.

    A round has `local_steps` steps, or `local_epochs` passes (one by default), with batches in an order drawn from
    the seed. `batch_size` None takes the whole partition. With `drop_last` no batch has fewer examples. With
    `accumulate` a step takes the mean gradient of so many batches, or of those left in a pass. This is the
    gradient of one large batch, except if examples of a batch interact, as in BatchNorm. `lr_schedule` and
    `warmup` change `lr` over rounds. `lr_schedule_by` can also change `lr` over the steps of a round, which then
    count as fractions of the round.

    >>> local = LocalSgd(local_epochs=2, batch_size=32, lr=0.1, lr_schedule="step:10:0.5")
    >>> local.count(100), local.rate(State({}, round=10))
    (8, 0.05)
    """

    either = ("local_steps", "local_epochs")
    pseudo_gradient = True
    whole = option.WHOLE_BATCHES

    local_steps: option.LocalSteps = None
    local_epochs: option.LocalEpochs = None
    batch_size: option.BatchSize = 32
    drop_last: option.DropLast = False
    accumulate: option.Accumulate = 1
    lr_schedule_by: option.LearningRateScheduleBy = "round"

    def __post_init__(self) -> None:
        if self.local_steps and self.local_epochs:
            raise UsageError("give local_steps or local_epochs, not both")
        super().__post_init__()
        if self.accumulate > 1 and self.batch_size is None:
            raise UsageError(f"accumulate = {self.accumulate} needs batches; give batch_size")

    @property
    def needs_rounds(self) -> str:
        return "" if self.lr_schedule_by == "round" else f"lr_schedule_by = {self.lr_schedule_by}"

    @property
    def step_size(self) -> int | None:
        """The number of examples in a step's gradient; None for the whole partition."""
        return self.batch_size and self.batch_size * self.accumulate

    def count(self, examples: int) -> int:
        """Return the number of steps of a round on a partition with so many examples."""
        used = used_of(examples, self.whole)
        return self.local_steps or (self.local_epochs or 1) * -(-used // (self.step_size or used))

    def rates(self, state: State, steps: int) -> list[float]:
        """Return the learning rate of each of so many steps in the round that begins with this state."""
        if self.lr_schedule_by == "round":
            return [self.rate(state)] * steps
        schedule = Schedule(self.lr_schedule, self.warmup)
        return [self.lr * schedule(state.round + 1, step / steps, 1 / steps) for step in range(steps)]

    def start(self, objective: Objective, state: State, seed: int) -> State:
        """Return the state from which local training begins. `seed` is that of the partition and round."""
        return state

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. The direction, old minus new parameters, is one vector (elements,) per dtype."""
        return self.walk(objective, state, examples, seed, carry=carry)

    def walk(
        self,
        objective: Objective,
        state: State,
        examples: Examples,
        seed: int,
        term: Term | None = None,
        carry: Slots | None = None,
    ) -> Update:
        """Do one round of local training like `train`. The direction is the start minus the new parameters."""
        arrived, update = self.train(objective, state, examples, seed, term, carry=carry)
        return replace(update, direction=minus(state.params, arrived))

    def train(
        self,
        objective: Objective,
        state: State,
        examples: Examples,
        seed: int,
        term: Term | None = None,
        move: Vectors | None = None,
        carry: Slots | None = None,
    ) -> tuple[Vectors, Update]:
        """Do one round of local training. Return the new parameters, and the update without its direction.

        `term` is added to every gradient before clipping. `move` is subtracted from the parameters after the first
        step. `carry` has the optimizer's state by slot, if that is carried. Parameters, `move` and slots are one
        vector (elements,) per dtype. The update's weight is the partition's number of examples (McMahan et al.
        2017, Algorithm 1).
        """
        own = copied(self.start(objective, state, seed))
        network = objective.over(own)
        step, steps = self.stepper(objective, network, carry or {}), self.count(len(examples))
        rates, losses = self.rates(state, steps), list[torch.Tensor]()
        for number, batch in enumerate(batches(examples, self.step_size, steps, seed, self.whole)):
            if self.accumulate > 1:
                losses.append(backprop_in_pieces(objective, network, batch, self.batch_size or len(batch)))
            else:
                losses.append(backprop(objective, network, batch))
            if term is not None:
                _add(step.trained, term)
            if objective.accepts(step.parameters):
                step(rates[number])
            if move is not None and number == 0:
                _subtract(network, views(objective.layout.params, move))
        update = Update(
            direction={},
            buffers=buffers_of(objective, network, state),
            weight=len(examples),
            metrics={"train_loss": mean_loss(losses).item()},
            carry=step.state(),
        )
        return arrived_at(network, objective.layout.params, own.params), update

    def stepper(self, objective: Objective, network: nn.Module, carry: Slots) -> Stepper:
        """Return the object that takes the steps of a network. `carry` has vectors (element,) by slot."""
        return Stepper(trained_of(network))


@dataclass(frozen=True)
class LocalSteps(LocalSgd):
    """Local training from the round's state with any optimizer of torch.optim.

    `optimizer` is a name, or your function that makes an optimizer for a network. A function sets its own learning
    rates, takes no `lr`, and `lr_schedule` multiplies its rates. Parameters of the kinds in `no_decay_on` have no
    weight decay. The optimizer restarts each round, unless `optimizer_state` is ``carried``. Then each partition
    keeps the optimizer's state, such as Adam's moments, in slots named after torch's keys. `clip_norm` bounds the
    gradient's L2 norm. With `init` ``per-partition``, each partition begins round 1 from initial weights of its
    own, drawn from its seed.

    >>> LocalSteps(local_steps=5, optimizer="adamw").optimizer
    'AdamW'
    """

    lr: option.LearningRate = option.LEARNING_RATE
    momentum: option.Momentum = 0.0
    nesterov: option.Nesterov = False
    optimizer: Optimizer = "SGD"
    optimizer_options: option.OptimizerOptions = None
    no_decay_on: option.NoDecayOn = ()
    optimizer_state: option.OptimizerState = "fresh"
    clip_norm: option.ClipNorm = None
    init: option.Init = "shared"
    slots: tuple[Slot, ...] | None = field(default=None, repr=False)
    """What the optimizer keeps from round to round; None until `bound` finds out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "optimizer", own_optimizer(self.optimizer))
        object.__setattr__(self, "no_decay_on", tuple(at_commas(self.no_decay_on)))
        if isinstance(self.optimizer, Code):
            self._check_own(self.optimizer.label)
            return
        check_name(self.optimizer)
        if "lr" in (self.optimizer_options or {}):
            raise UsageError("give lr as lr, not among the optimizer's options")
        if self.all_options or self.no_decay_on:
            trial = [torch.nn.Parameter(torch.zeros(1, 1))]
            defaults = optimizer_of(self.optimizer, trial, self.lr, self.all_options).defaults
            if self.no_decay_on and not defaults.get("weight_decay"):
                raise UsageError(
                    f"optimizer {self.optimizer} decays no weights here: give it a weight_decay, or leave "
                    "no_decay_on out"
                )

    def _check_own(self, label: str) -> None:
        """Refuse options that the user's function decides. A default learning rate becomes 1, a factor."""
        names = ("momentum", "nesterov", "optimizer_options", "no_decay_on")
        if given := [name for name in names if getattr(self, name)]:
            raise UsageError(f"optimizer {label} decides about {', '.join(given)} itself; leave that out")
        if self.lr != 1.0 and not isinstance(self.lr, option.Default):
            raise UsageError(f"optimizer {label} sets its learning rates itself; leave lr = {self.lr} out")
        object.__setattr__(self, "lr", 1.0)

    @property
    def begins_apart(self) -> bool:
        return self.init == "per-partition"

    @property
    def needs_rounds(self) -> str:
        return f"init = {self.init}" if self.begins_apart else super().needs_rounds

    @property
    def elementwise(self) -> bool:
        """Whether a step of each parameter's element needs its own gradient alone."""
        return not (self.clip_norm or isinstance(self.optimizer, Code) or self.optimizer in WHOLE)

    reads_extras_alone = True

    @property
    def stackable(self) -> bool:
        """Whether the map is plain SGD from the round's state, which a batched network can do for partitions."""
        plain = self.is_plain and not self.clip_norm and self.accumulate == 1
        return plain and not self.begins_apart and self.lr_schedule_by == "round"

    @property
    def all_options(self) -> dict[str, Any]:
        """All options of the optimizer except its learning rate."""
        given = {"momentum": self.momentum, "nesterov": self.nesterov}
        return {**(self.optimizer_options or {}), **{name: value for name, value in given.items() if value}}

    @property
    def is_plain(self) -> bool:
        """Whether the optimizer is plain SGD, which only subtracts lr times the gradient."""
        return self.optimizer == "SGD" and not self.all_options

    def optimizer_for(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return a new optimizer of a network. Its learning rates are relative to `lr`. Raises `UsageError`."""
        if isinstance(self.optimizer, Code):
            return made_optimizer(self.optimizer, network)
        trained = [*trained_of(network).values()]
        groups = decay_groups(network, self.no_decay_on) if self.no_decay_on else trained
        return optimizer_of(self.optimizer, groups, 1.0, self.all_options)

    also_carried: ClassVar[tuple[str, ...]] = ()
    """The slots that a partition keeps besides the optimizer's, each one vector (elements,) per dtype."""

    @property
    def carry(self) -> tuple[str, ...]:
        """The slots of `also_carried` and of a carried optimizer, each one vector (elements,) per dtype."""
        return (*self.also_carried, *(slot.key for slot in self.slots or ()))

    def bound(self, objective: Objective, partitions: Any) -> Self:
        """Return this map after a trial step on the run's network, which shows the optimizer's state.

        Raises `UsageError` if the step fails, or if a state that must be carried cannot be carried.
        """
        if self.is_plain:
            return replace(self, slots=())
        network = objective.fresh()
        optimizer = self.optimizer_for(network)
        if self.optimizer_state == "carried":
            bound = replace(self, slots=find_slots(optimizer, trained_of(network)))
            if lacking := sorted({slot.key for slot in bound.slots or ()} - {*bound.carry}):
                raise UsageError(
                    f"map {type(self).__name__} has a carry without {', '.join(lacking)} of its optimizer"
                )
            return bound
        check_steps(optimizer)
        return replace(self, slots=())

    def start(self, objective: Objective, state: State, seed: int) -> State:
        """Return the round's state, or in round 1 the partition's own initial weights if `init` says so."""
        if not (self.begins_apart and state.round == 0):
            return state
        device = next(iter(state.params.values())).device
        return moved(objective.seeded(seed).initial(), lambda tensor: tensor.to(device))

    def stepper(self, objective: Objective, network: nn.Module, carry: Slots) -> Stepper:
        trained = trained_of(network)
        # Plain SGD needs no torch.optim, which takes 1.2 s to import and longer steps, for the same bits.
        if self.is_plain:
            return Stepper(trained, self.clip_norm)
        optimizer = self.optimizer_for(network)
        if self.optimizer_state == "fresh":
            return Stepper(trained, self.clip_norm, optimizer)
        if self.slots is None:
            raise UsageError("the map does not know its optimizer's state yet: call its `bound` first")
        kept = (optimizer, self.slots, trained, objective.layout.params)
        set_state(*kept, carry)
        return Stepper(trained, self.clip_norm, optimizer, partial(state_of, *kept))


@torch.no_grad()
def _subtract(network: torch.nn.Module, move: Mapping[str, torch.Tensor]) -> None:
    """Subtract tensors, given by parameter name and in the parameters' shapes, from a network's parameters."""
    for name, amount in move.items():
        network.get_parameter(name).sub_(amount)


def _add(parameters: Mapping[str, torch.nn.Parameter], term: Term) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            added = term(name, parameter)
            parameter.grad = added.clone() if parameter.grad is None else parameter.grad.to_dense().add_(added)
