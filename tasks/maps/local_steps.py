"""Local training on a partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from storage.errors import UsageError
from storage.values.state import State, Update
from storage.values.tensors import Vectors, pack, views
from tasks.algebra import Map
from tasks.applies.schedules import CONSTANT, Schedule
from tasks.data.examples import Examples
from tasks.maps.backprop import backprop, descend
from tasks.maps.batches import batches
from tasks.maps.optimizers import check_optimizer, check_steps, optimizer_name, optimizer_of
from tasks.maps.stacking.courses import course, lengths_of
from tasks.maps.stacking.independence import check_stackable
from tasks.maps.stacking.replicas import Stacked
from tasks.maps.stacking.training import train
from tasks.networks.objective import Objective, buffers_of

Term = Callable[[str, torch.Tensor], torch.Tensor]
"""What is added to a parameter's gradient, given its name and value; all three have the parameter's shape."""


@dataclass(frozen=True)
class LocalSteps(Map):
    """Local training from the round's state; the direction is start minus arrived.

    Walks `steps` batches, or `epochs` passes, in an order drawn from the seed, with a torch optimizer that
    starts afresh each round. `batch_size` None means the whole partition; `clip_norm` bounds the gradient's
    L2 norm; `schedule` changes `lr` over rounds. The weight is the partition's number of examples (McMahan et al.
    2017, Algorithm 1). With `init` ``per-partition`` each partition begins round 1 from initial weights of its
    own, drawn from its seed. So many partitions are trained `stacked`, side by side, also where fewer are
    mapped: the bits depend on the number, and on no other partition.

    >>> local = LocalSteps(epochs=2, batch_size=32, lr=0.1, schedule=Schedule("step:10:0.5"))
    >>> local.count(100), local.rate(State({}, round=10))
    (8, 0.05)
    """

    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = 32
    optimizer: str = "SGD"
    lr: float = 0.1
    options: tuple[tuple[str, Any], ...] = ()
    clip_norm: float | None = None
    init: Literal["shared", "per-partition"] = "shared"
    schedule: Schedule = CONSTANT
    stacked: int = 1

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise UsageError("local training needs either steps or epochs, not both")
        object.__setattr__(self, "optimizer", optimizer_name(self.optimizer))
        check_optimizer(self.optimizer)
        if self.stacked > 1 and self.unstackable:
            raise UsageError(
                f"stacked = {self.stacked} is for plain SGD from a shared start, not for {self.unstackable}; "
                "leave one of them out"
            )
        if "lr" in dict(self.options):
            raise UsageError("give lr as lr, not among the optimizer's options")
        if self.options:
            optimizer_of(self.optimizer, [torch.nn.Parameter(torch.zeros(1, 1))], self.lr, dict(self.options))

    @property
    def stack(self) -> int:
        """As many as are stacked."""
        return self.stacked

    @property
    def unstackable(self) -> str | None:
        """Which of its options cannot be stacked, None where all can."""
        others = {
            f"optimizer {self.optimizer}": self.optimizer != "SGD",
            f"options {dict(self.options)}": bool(self.options),
            f"clip_norm {self.clip_norm}": self.clip_norm is not None,
            f"init {self.init}": self.init != "shared",
        }
        return next((name for name, given in others.items() if given), None)

    def check(self, objective: Objective, examples: Examples, sizes: Sequence[int]) -> None:
        """Raise `UsageError` where the optimizer, `ModelError` where stacking is not for this network.

        Replicas are tried at any length of their batches.
        """
        if not self._is_plain:
            parameters = [p for p in objective.network(objective.initial()).parameters() if p.requires_grad]
            check_steps(optimizer_of(self.optimizer, parameters, self.lr, dict(self.options)))
        if self.stacked > 1:
            lengths = {n for size in {*sizes} for n in lengths_of(size, self.batch_size, self.count(size))}
            for length in sorted(lengths or {len(examples)}, reverse=True):
                rows = torch.arange(length) % len(examples)
                check_stackable(
                    Stacked(objective, self.stacked), Examples(examples.inputs[rows], examples.targets[rows])
                )

    def __call__(
        self,
        objective: Objective,
        state: State,
        examples: Examples,
        carry: Mapping[str, Vectors],
        seed: int,
    ) -> Update:
        """Train, and send back how far the parameters went: one vector (elements,) per dtype."""
        if self.stacked > 1:
            return self.together(objective, state, [examples], [carry], [seed])[0]
        return self.train(objective, state, examples, seed)

    def together(
        self,
        objective: Objective,
        state: State,
        examples: Sequence[Examples],
        carries: Sequence[Mapping[str, Vectors]],
        seeds: Sequence[int],
    ) -> Sequence[Update]:
        """Train up to `stack` partitions side by side, an update for each."""
        if self.stacked == 1:
            return super().together(objective, state, examples, carries, seeds)
        counts = [self.count(len(each)) for each in examples]
        courses = [
            course(each, self.batch_size, steps, seed)
            for each, steps, seed in zip(examples, counts, seeds, strict=True)
        ]
        arrived = train(Stacked(objective, self.stacked), state, courses, self.rate(state))
        directions = {name: start - arrived.params[name] for name, start in state.params.items()}
        losses = arrived.losses.tolist()
        return [
            Update(
                direction={name: rows[number] for name, rows in directions.items()},
                buffers=state.buffers,
                weight=len(each),
                metrics={"train_loss": losses[number] / counts[number]},
            )
            for number, each in enumerate(examples)
        ]

    @property
    def _is_plain(self) -> bool:
        """Whether the optimizer subtracts lr times the gradient, and no more."""
        return self.optimizer == "SGD" and not self.options

    def count(self, examples: int) -> int:
        """How many steps a round takes over so many examples."""
        return self.steps or (self.epochs or 0) * -(-examples // (self.batch_size or examples))

    def rate(self, state: State) -> float:
        """The learning rate of the round that begins from a state."""
        return self.lr * self.schedule(state.round + 1)

    def train(
        self, objective: Objective, state: State, examples: Examples, seed: int, term: Term | None = None
    ) -> Update:
        """One round of local training, with a term added to every gradient before it is clipped."""
        return self.walk(objective, state, examples, seed, term)[0]

    def walk(
        self,
        objective: Objective,
        state: State,
        examples: Examples,
        seed: int,
        term: Term | None = None,
        move: Vectors | None = None,
    ) -> tuple[Update, Vectors]:
        """The same, and the parameters where it arrives, one vector (elements,) per dtype.

        A `move`, of the same form, is subtracted from the parameters after the first step.
        """
        if self.stacked > 1:
            raise UsageError("only local training as it is can be stacked: no further terms; leave stacked at 1")
        own = self.init == "per-partition" and state.round == 0
        network = objective.network(objective.seeded(seed).initial() if own else state)
        step = self._step(objective, network, self.rate(state), term)
        steps = self.count(len(examples))
        total = torch.zeros(())
        for number, batch in enumerate(batches(examples, self.batch_size, steps, seed)):
            total += step(batch)
            if move is not None and number == 0:
                subtract(network, views(objective.layout.params, move))
        arrived = pack(objective.layout.params, dict(network.named_parameters()))
        update = Update(
            direction={name: start - arrived[name] for name, start in state.params.items()},
            buffers=buffers_of(network, objective.layout),
            weight=len(examples),
            metrics={"train_loss": total.item() / steps},
        )
        return update, arrived

    def _step(
        self, objective: Objective, network: torch.nn.Module, lr: float, term: Term | None
    ) -> Callable[[Examples], torch.Tensor]:
        """What takes a step of a network on a batch, and gives its loss."""
        named = {name: p for name, p in network.named_parameters() if p.requires_grad}
        parameters = list(named.values())
        # Plain SGD without torch.optim: the same bits, less time a step, and torch.optim takes 1.2 s to start.
        optimizer = None if self._is_plain else optimizer_of(self.optimizer, parameters, lr, dict(self.options))

        def step(batch: Examples) -> torch.Tensor:
            loss = backprop(objective, network, batch)
            if term is not None:
                _add(named, term)
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm)
            if optimizer is None:
                descend(parameters, lr)
            else:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        return step


@torch.no_grad()
def subtract(network: torch.nn.Module, move: Mapping[str, torch.Tensor]) -> None:
    """Subtract from a network's parameters what a name of each gives, of the parameter's shape."""
    for name, amount in move.items():
        network.get_parameter(name).sub_(amount)


def _add(parameters: Mapping[str, torch.nn.Parameter], term: Term) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            added = term(name, parameter)
            parameter.grad = added.clone() if parameter.grad is None else parameter.grad.add_(added)
