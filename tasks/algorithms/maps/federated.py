"""Local training for unlike partitions: with corrections, with own networks, or with more metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Self

import torch
from pydantic import Field

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, views
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.algorithms.algebra import OWN
from roundweave.tasks.algorithms.maps.gradient import Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSgd, LocalSteps
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.loading import AnyExamples
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.scores import NEITHER
from roundweave.tasks.numerics.pieces import accumulator


@dataclass(frozen=True)
class FedProx(LocalSteps):
    """Local training with ``(mu / 2) |w - w_t|^2`` added to the loss (Li et al. 2020, Algorithm 2).

    w_t are the parameters at the round's start. With mu 0 the bits are those of plain local training.

    >>> from roundweave.tasks.networks.objective import ModelSpec
    >>> objective = Objective(ModelSpec("linear", (2,), 1, "float32", seed=0), "mse")
    >>> examples = Examples(torch.ones(3, 2), torch.zeros(3))
    >>> maps = (FedProx(local_steps=9, mu=mu) for mu in (0.0, 1.0, 5.0))
    >>> updates = [map(objective, objective.initial(), examples, {}, 0) for map in maps]
    >>> far, near, nearest = (update.direction["float32"].norm().item() for update in updates)
    >>> far > near > nearest
    True
    """

    reads_extras_alone = True
    mu: option.Proximity = 0.1

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. The direction is one vector (elements,) per dtype."""
        start = views(objective.layout.params, state.params)

        def pull(name: str, parameter: torch.Tensor) -> torch.Tensor:
            return self.mu * (parameter - start[name])

        return self.walk(objective, state, examples, seed, pull if self.mu else None, carry=carry)


@dataclass(frozen=True)
class Scaffold(LocalSgd):
    """Local SGD with control variates (Karimireddy et al. 2020, Algorithm 1, option II).

    Each of the K steps uses g - c_i + c in place of the gradient g. A partition carries c_i. After the round c_i
    is the mean gradient c_i - c + (start - arrived) / (K lr), where K lr is the sum of the steps' learning rates.
    The extra ``control`` has the change of c_i. `KeepExtras` adds ``|S| / N`` times the mean change to the
    server's c, where S of N partitions took part and were accepted. If the reduce counts each partition the same,
    as in the paper, c stays the mean of all c_i.

    >>> Scaffold(local_epochs=1).carry
    ('control',)
    """

    reads_extras_alone = True
    carry = extras = ("control",)

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. Direction and control variate are one vector (elements,) per dtype."""
        if "control" not in state.memory:
            raise UsageError("SCAFFOLD needs the server's control variate: wrap its apply in KeepExtras")
        server = state.memory["control"]
        own = carry.get("control") or {name: torch.zeros_like(vector) for name, vector in server.items()}
        correction = {name: vector - own[name] for name, vector in server.items()}
        terms = views(objective.layout.params, correction)
        update = self.walk(objective, state, examples, seed, lambda name, parameter: terms[name])
        walked = math.fsum(self.rates(state, self.count(len(examples))))
        changes = {
            name: (vector.to(accumulator(name)) / walked - server[name]).to(vector.dtype)
            for name, vector in update.direction.items()
        }
        control = {name: own[name] + change for name, change in changes.items()}
        return replace(update, carry={"control": control}, extras={"control": changes})


FORCE = 0.9
"""The sum of all partitions' elasticities, as in the experiments of Zhang et al. 2015, section 5."""


@dataclass(frozen=True)
class OwnNetwork(LocalSteps):
    """Local training of a network that the partition carries from round to round (D-PSGD, Lian et al. 2017).

    With a mixing, the network is averaged with its neighbours' networks before each round (Koloskova et al. 2020,
    Algorithm 1, with local steps). Without a mixing, each partition trains alone. The first round begins from the
    state. The direction is the state minus the trained network. With a plain mean and outer steps of 1, the state
    is the mean of all networks; no map trains from this mean. Buffers are those of the state. The metric
    ``consensus`` is the L2 distance between the mean and the network at the round's start.

    >>> OwnNetwork(local_steps=10).carry
    ('own',)
    """

    also_carried = (OWN,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init != "shared":
            raise UsageError("networks of partitions' own begin from one network; leave init out")

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. Direction and carried parameters are one vector (elements,) per dtype."""
        own = carry.get(OWN, state.params)
        arrived, update = self.train(objective, replace(state, params=own), examples, seed, carry=carry)
        direction = {name: mean - arrived[name] for name, mean in state.params.items()}
        apart = (torch.dist(own[k].to(w := accumulator(k)), mean.to(w)).item() for k, mean in state.params.items())
        metrics = {**update.metrics, "consensus": math.hypot(*apart)}
        return replace(update, direction=direction, carry={OWN: arrived, **update.carry}, metrics=metrics)


@dataclass(frozen=True)
class Elastic(OwnNetwork):
    """Elastic averaging: the server draws each partition's own parameters x (Zhang et al. 2015, Algorithm 1).

    In each map, x and the server's parameters move towards each other by `elasticity` times their difference. Then
    x takes its local steps. The first step uses the gradient at x before the move. The partition pushes the
    server's part of the move as the direction. The default elasticity is 0.9 divided by the number of partitions.

    >>> Elastic(local_steps=10).carry
    ('own',)
    """

    elasticity: option.Elasticity = None

    def bound(self, objective: Any, partitions: Any) -> Self:
        """Return this map with the default elasticity for the number of partitions."""
        bound = super().bound(objective, partitions)
        return replace(bound, elasticity=self.elasticity or FORCE / partitions.split.partitions)

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. Direction and carried parameters are one vector (elements,) per dtype."""
        assert self.elasticity is not None
        own, moves = carry.get(OWN, state.params), dict[str, Any]()
        for name, server in state.params.items():
            wide = accumulator(name)
            moves[name] = ((own[name].to(wide) - server.to(wide)) * self.elasticity).to(server.dtype)
        arrived, update = self.train(
            objective, replace(state, params=own), examples, seed, move=moves, carry=carry
        )
        direction = {name: -move for name, move in moves.items()}
        return replace(update, direction=direction, carry={OWN: arrived, **update.carry})


Regularization = Annotated[float, Field(gt=0, description="weight of the dynamic regularizer")]
Decay = Annotated[float, Field(ge=0, lt=1, description="server momentum in the local steps")]
Ascent = Annotated[float, Field(ge=0, description="learning rate of the partitions' weights")]


@dataclass(frozen=True)
class FedDyn(LocalSteps):
    """Local training on ``f(w) - <g, w> + (alpha / 2) |w - start|^2`` (FedDyn, Acar et al. 2021, Algorithm 1).

    Each partition carries its g, which begins at 0 and grows by alpha times start minus arrived. The server's part
    is the apply `Drift`.

    >>> FedDyn(local_epochs=1).carry
    ('drift',)
    """

    reads_extras_alone = True
    also_carried = ("drift",)
    alpha: Regularization = 0.1

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. Direction and g are one vector (elements,) per dtype."""
        own = carry.get("drift") or {name: torch.zeros_like(vector) for name, vector in state.params.items()}
        start, g = (views(objective.layout.params, vectors) for vectors in (state.params, own))

        def term(name: str, w: torch.Tensor) -> torch.Tensor:
            return self.alpha * (w - start[name]) - g[name]

        update = self.walk(objective, state, examples, seed, term, carry=carry)
        kept = {name: vector + self.alpha * update.direction[name] for name, vector in own.items()}
        return replace(update, carry={"drift": kept, **update.carry})


@dataclass(frozen=True)
class FedNova(LocalSgd):
    """Local SGD that reports the length of its walk to the reduce `Normalised` (FedNova, Wang et al. 2020).

    The metric ``walked`` is the sum of the steps' learning rates, in units of `lr`. For equal rates this is the
    number of steps.
    """

    reads_extras_alone = True

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. The direction is one vector (elements,) per dtype."""
        update = self.walk(objective, state, examples, seed)
        walked = math.fsum(self.rates(state, self.count(len(examples)))) / self.lr
        return replace(update, metrics={**update.metrics, "walked": walked})


@dataclass(frozen=True)
class FairSteps(LocalSteps):
    """Local training that reports the partition's loss at the round's start, for reduces that weight by loss.

    The metrics are ``start_loss``, over all examples of the partition, and ``rate``, the mean learning rate of the
    steps.
    """

    reads_extras_alone = True

    def bound(self, objective: Objective, partitions: Any) -> Self:
        """Return this map. Raises `UsageError` for a loss that has no mean over a partition."""
        check_mean(objective)
        return super().bound(objective, partitions)

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. The direction is one vector (elements,) per dtype."""
        update = self.walk(objective, state, examples, seed, carry=carry)
        start, rates = start_loss(objective, state, examples), self.rates(state, self.count(len(examples)))
        return replace(update, metrics={**update.metrics, "start_loss": start, "rate": fmean(rates)})


@dataclass(frozen=True)
class Agnostic(LocalSteps):
    """Local training of the mixture of partitions with the worst weights (Mohri et al. 2019).

    The paper projects a gradient step of the weights on the simplex (Algorithm 1). This map multiplies a weight by
    exp(`ascent` times the loss at the round's start), a step of mirror ascent. Each partition then computes its
    own weight, up to the sum of all weights; the reduce `Worst` divides by the sum. A partition carries the
    weight's logarithm as the first element of ``weight``, and reports it as the metric ``log_weight``. A partition
    that takes no part keeps its weight.

    >>> Agnostic(local_steps=1).carry
    ('weight',)
    """

    reads_extras_alone = True
    also_carried = ("weight",)
    ascent: Ascent = 0.1

    def bound(self, objective: Objective, partitions: Any) -> Self:
        """Return this map.

        Raises `UsageError` for losses without a mean, and for parameters that would round their sum.
        """
        check_mean(objective)
        if rounding := {spec.dtype for spec in objective.layout.params} - {"float32", "float64"}:
            raise UsageError(
                f"afl carries sums of losses, which {', '.join(rounding)} rounds; give dtype = float32"
            )
        return super().bound(objective, partitions)

    @property
    def unit_slots(self) -> tuple[str, ...]:
        """All slots but the weight, which is one number."""
        return tuple(slot for slot in super().unit_slots if slot != "weight")

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. The direction is one vector (elements,) per dtype."""
        update = self.walk(objective, state, examples, seed, carry=carry)
        own = carry.get("weight") or {name: torch.zeros_like(vector) for name, vector in state.params.items()}
        grown = self.ascent * start_loss(objective, state, examples)
        kept = {name: torch.cat([vector[:1] + grown, vector[1:]]) for name, vector in own.items()}
        # Weights and network step at once, each along the gradient before the step.
        metrics = {**update.metrics, "log_weight": next(iter(own.values()))[0].item()}
        return replace(update, carry={"weight": kept, **update.carry}, metrics=metrics)


@dataclass(frozen=True)
class MimeLite(LocalSgd):
    """Local SGD with the server's momentum, which no local step changes (MimeLite, Karimireddy et al. 2021).

    Each step uses g + beta m in place of the gradient g, in torch's convention of momentum. The extra ``momentum``
    is the change of m that the partition asks for: its gradient at the round's start minus (1 - beta) m. Then m
    becomes beta m plus the mean gradient.
    """

    reads_extras_alone = True
    beta: Decay = 0.9
    extras = ("momentum",)
    extras_of_all = False

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. Direction and momentum are one vector (elements,) per dtype."""
        server = state.memory["momentum"]
        terms = views(objective.layout.params, {name: self.beta * vector for name, vector in server.items()})
        update = self.walk(objective, state, examples, seed, lambda name, parameter: terms[name])
        gradient = Gradient()(objective, state, examples, {}, seed).direction
        changes = {name: gradient[name] - (1 - self.beta) * vector for name, vector in server.items()}
        return replace(update, extras={"momentum": changes})


def check_mean(objective: Objective) -> None:
    """Raise `UsageError` if the loss of a partition is not the mean of the losses of its batches."""
    if objective.rule.by_label is None:
        raise UsageError(f"partitions are weighed by their loss: {NEITHER}; give a number for each example")


@torch.no_grad()
def start_loss(objective: Objective, state: State, examples: AnyExamples) -> float:
    """Return the mean loss of all examples ``(example, *)`` of a partition at a state, prepared as for scoring."""
    network, total, counted = objective.network(state).eval(), 0.0, 0
    for batch in (examples if isinstance(examples, Examples) else examples.as_scored()).slices(SLICE):
        if items := objective.counted(batch.targets):
            total += items * objective.loss_of(network, batch.inputs, batch.targets).item()
            counted += items
    return total / (counted or 1)


SLICE = 128
"""The number of examples in memory at once for a loss that needs no gradient."""
