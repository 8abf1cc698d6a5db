"""Local training on a partition."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import AfterValidator, Field

from storage.errors import UsageError, near, one_line
from storage.values.state import State, Update
from storage.values.tensors import Vectors, pack, views
from tasks import options as option
from tasks.algebra import Map
from tasks.applies.schedules import Scheduled
from tasks.data.examples import Examples
from tasks.devices import moved
from tasks.maps.backprop import backprop, batches, descend
from tasks.networks.objective import Objective, buffers_of


def optimizer_name(name: str) -> str:
    """An optimizer's name in torch's spelling, from a name in any case; an unknown name is returned unchanged.

    >>> optimizer_name("adamw"), optimizer_name("Other")
    ('AdamW', 'Other')
    """
    return _names().get(name.lower(), name)


Optimizer = Annotated[
    str,
    Field(description="the local optimizer: any of torch.optim; it restarts each round"),
    AfterValidator(optimizer_name),
]

Term = Callable[[str, torch.Tensor], torch.Tensor]
"""What is added to a parameter's gradient, given its name and value; all three have the parameter's shape."""


@dataclass(frozen=True)
class LocalSgd(Scheduled, Map):
    """Plain SGD on a partition, the base class of all local training.

    It takes `local_steps` steps, or makes `local_epochs` passes (by default one), with batches in an order drawn
    from the seed. `batch_size` None means the whole partition. `lr_schedule` and `warmup` change `lr` over rounds.

    >>> local = LocalSgd(local_epochs=2, batch_size=32, lr=0.1, lr_schedule="step:10:0.5")
    >>> local.count(100), local.rate(State({}, round=10))
    (8, 0.05)
    """

    either: ClassVar[tuple[str, str]] = ("local_steps", "local_epochs")
    """Options of which only one may be given; a given one overrides the default of the other."""

    local_steps: option.LocalSteps = None
    local_epochs: option.LocalEpochs = None
    batch_size: option.BatchSize = 32

    def __post_init__(self) -> None:
        if self.local_steps and self.local_epochs:
            raise UsageError("give local_steps or local_epochs, not both")
        super().__post_init__()

    def count(self, examples: int) -> int:
        """The number of steps in a round on a partition with so many examples."""
        return self.local_steps or (self.local_epochs or 1) * -(-examples // (self.batch_size or examples))

    def start(self, objective: Objective, state: State, seed: int) -> State:
        """The state from which local training begins; `seed` is that of the partition and round."""
        return state

    def __call__(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """Train on the partition; the direction, old minus new parameters, is one vector (elements,) per dtype."""
        return self.walk(objective, state, examples, seed)[0]

    def walk(
        self,
        objective: Objective,
        state: State,
        examples: Examples,
        seed: int,
        term: Term | None = None,
        move: Vectors | None = None,
    ) -> tuple[Update, Vectors]:
        """Do one round of local training; returns the update and the new parameters.

        `term` is added to every gradient before clipping. `move` is subtracted from the parameters after the first
        step. Parameters and `move` are one vector (elements,) per dtype. The update's weight is the partition's
        number of examples (McMahan et al. 2017, Algorithm 1).
        """
        network = objective.network(self.start(objective, state, seed))
        trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        step, steps = self.stepper(list(trained.values()), self.rate(state)), self.count(len(examples))
        total = torch.zeros((), device=examples.inputs.device)
        for number, batch in enumerate(batches(examples, self.batch_size, steps, seed)):
            total += backprop(objective, network, batch)
            if term is not None:
                _add(trained, term)
            step()
            if move is not None and number == 0:
                _subtract(network, views(objective.layout.params, move))
        arrived = pack(objective.layout.params, dict(network.named_parameters()))
        update = Update(
            direction={name: start - arrived[name] for name, start in state.params.items()},
            buffers=buffers_of(network, objective.layout),
            weight=len(examples),
            metrics={"train_loss": total.item() / steps},
        )
        return update, arrived

    def stepper(self, trained: list[torch.nn.Parameter], lr: float) -> Callable[[], None]:
        """A function that takes a step of the trained parameters by their gradients, and clears these."""
        return functools.partial(descend, trained, lr)


@dataclass(frozen=True)
class LocalSteps(LocalSgd):
    """Local training from the round's state with any optimizer of torch.optim, which restarts each round.

    `clip_norm` bounds the gradient's L2 norm. With `init` ``per-partition`` each partition begins round 1 from
    initial weights of its own, drawn from its seed.

    >>> LocalSteps(local_steps=5, optimizer="adamw").optimizer
    'AdamW'
    """

    momentum: option.Momentum = 0.0
    nesterov: option.Nesterov = False
    optimizer: Optimizer = "SGD"
    optimizer_options: option.OptimizerOptions = None
    clip_norm: option.ClipNorm = None
    init: option.Init = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "optimizer", optimizer_name(self.optimizer))
        check_optimizer(self.optimizer)
        if "lr" in (self.optimizer_options or {}):
            raise UsageError("give lr as lr, not among the optimizer's options")
        if self.all_options:
            self.optimizer_for([torch.nn.Parameter(torch.zeros(1, 1))], self.lr)

    @property
    def all_options(self) -> dict[str, Any]:
        """All options of the optimizer except its learning rate."""
        given = {"momentum": self.momentum, "nesterov": self.nesterov}
        return {**(self.optimizer_options or {}), **{name: value for name, value in given.items() if value}}

    @property
    def is_plain(self) -> bool:
        """Whether the optimizer is plain SGD, which only subtracts lr times the gradient."""
        return self.optimizer == "SGD" and not self.all_options

    def optimizer_for(self, parameters: list[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """A new optimizer of some parameters; raises `UsageError` for options that it does not take."""
        return optimizer_of(self.optimizer, parameters, lr, self.all_options)

    def bound(self, objective: Objective, partitions: Any) -> Self:
        """This map, after a trial step of its optimizer on the run's network.

        Raises `UsageError` if that fails.
        """
        if not self.is_plain:
            parameters = [p for p in objective.network(objective.initial()).parameters() if p.requires_grad]
            check_steps(self.optimizer_for(parameters, self.lr))
        return self

    def start(self, objective: Objective, state: State, seed: int) -> State:
        """The round's state, or in round 1 the partition's own initial weights if `init` says so."""
        own = self.init == "per-partition" and state.round == 0
        if not own:
            return state
        device = next(iter(state.params.values())).device
        return moved(objective.seeded(seed).initial(), lambda tensor: tensor.to(device))

    def stepper(self, trained: list[torch.nn.Parameter], lr: float) -> Callable[[], None]:
        # Plain SGD needs no torch.optim, which takes 1.2 s to import and longer steps, for the same bits.
        optimizer = None if self.is_plain else self.optimizer_for(trained, lr)

        def step() -> None:
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(trained, self.clip_norm)
            if optimizer is None:
                descend(trained, lr)
            else:
                optimizer.step()
                optimizer.zero_grad()

        return step


@torch.no_grad()
def _subtract(network: torch.nn.Module, move: Mapping[str, torch.Tensor]) -> None:
    """Subtract tensors, given by parameter name and of the parameters' shapes, from a network's parameters."""
    for name, amount in move.items():
        network.get_parameter(name).sub_(amount)


def _add(parameters: Mapping[str, torch.nn.Parameter], term: Term) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            added = term(name, parameter)
            parameter.grad = added.clone() if parameter.grad is None else parameter.grad.add_(added)


def check_optimizer(name: str) -> None:
    """Raise `UsageError` for a name that is no optimizer of torch, or an optimizer whose step calls the loss."""
    if name not in _names().values():
        meant = [_names()[close] for close in near(name.lower(), _names())] or _names().values()
        raise UsageError(f"torch.optim has no optimizer {name!r}; there is {', '.join(meant)}")
    if inspect.signature(_kind(name).step).parameters["closure"].default is inspect.Parameter.empty:
        raise UsageError(
            f"optimizer {name} computes the loss several times a step, which a batch has one of; use another"
        )


def optimizer_of(
    name: str, parameters: Sequence[torch.nn.Parameter], lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """A new optimizer for some parameters; raises `UsageError` if it does not take them or its options."""
    try:
        optimizer: torch.optim.Optimizer = _kind(name)(parameters, **{"lr": lr, **options})
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {name}: {error}") from error
    return optimizer


def check_steps(optimizer: torch.optim.Optimizer) -> None:
    """Try a step of an optimizer with gradients of zero; raises `UsageError` if it fails."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"optimizer {type(optimizer).__name__} cannot train this network: {one_line(error)}"
        ) from error


def _kind(name: str) -> Any:
    return getattr(torch.optim, name)


@functools.cache
def _names() -> Mapping[str, str]:
    """The names of torch's optimizers by their names in lower case."""
    base = torch.optim.Optimizer
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    return {name.lower(): name for name, kind in kinds.items() if issubclass(kind, base) and kind is not base}
