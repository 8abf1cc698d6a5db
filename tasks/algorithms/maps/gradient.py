"""Maps that send gradients: the gradient of a partition, or the sum of a replica's gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, pack
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.algorithms.algebra import Map
from roundweave.tasks.algorithms.applies.schedules import Scheduled
from roundweave.tasks.algorithms.maps.backprop import backprop, batches, descend
from roundweave.tasks.algorithms.maps.optimizers import trained_of
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import Objective, buffers_of, check_unchanged, mean_loss

LOCAL = "gradients do not tell of it, so choose local steps"
"""Advice about a network whose forward changes its trained parameters."""


@dataclass(frozen=True)
class Gradient(Map):
    """The gradient of the mean loss over the partition, or over one random batch of the partition.

    The weight is the number of items in the mean: the partition's examples, or those of their labels that count.
    So the mean over partitions is the gradient over all examples. With batches, the weight is the number of the
    partition's examples. The expected mean is then the gradient over all, if examples have equal numbers of
    labels.

    >>> from roundweave.tasks.networks.objective import ModelSpec
    >>> objective = Objective(ModelSpec("linear", (2,), 1, "float32", seed=0), "mse")
    >>> examples = Examples(torch.ones(3, 2), torch.zeros(3))
    >>> update = Gradient()(objective, objective.initial(), examples, {}, 0)
    >>> update.direction["float32"].shape, update.weight
    (torch.Size([3]), 3)
    """

    batch_size: option.BatchSize = None
    elementwise = reads_extras_alone = True

    def __post_init__(self) -> None:
        option.check_options(self)

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Do one forward and one backward pass. The direction is one vector (elements,) per dtype."""
        network = objective.network(state)
        batch = next(batches(examples, self.batch_size, 1, seed))
        loss = backprop(objective, network, batch)
        check_unchanged(network, objective.layout.params, state.params, LOCAL)
        gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
            for name, parameter in network.named_parameters()
        }
        return Update(
            direction=pack(objective.layout.params, gradients),
            buffers=buffers_of(objective, network, state),
            weight=len(examples) if self.batch_size else objective.counted(batch.targets),
            metrics={"train_loss": loss.item()},
        )


@dataclass(frozen=True)
class Downpour(Scheduled, Map):
    """SGD steps of a replica, which pushes the sum of its gradients (Dean et al. 2012, Algorithm 1).

    The replica pushes after every `push_every` steps and continues from its own parameters, which it carries as
    ``replica``. It fetches the server's parameters after every `fetch_every` steps. `lr` is the learning rate of
    the replica's steps.

    >>> Downpour(push_every=2, fetch_every=4).carry, Downpour(push_every=2, fetch_every=2).carry
    (('replica',), ())
    """

    batch_size: option.BatchSize = 32
    drop_last: option.DropLast = False
    push_every: option.PushEvery = 1
    fetch_every: option.FetchEvery = 1
    fetch_ends_carry = True
    whole = option.WHOLE_BATCHES

    @property
    def carry(self) -> tuple[str, ...]:
        """The replica's parameters, one vector (elements,) per dtype; no slot if every push ends with a fetch."""
        return ("replica",) if self.fetch_every > self.push_every else ()

    def __call__(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """Train on the partition. The direction is the sum of gradients, one vector (elements,) per dtype."""
        start = replace(state, params=carry.get("replica", state.params))
        network = objective.network(start)
        parameters = trained_of(network)
        lr = self.rate(state)
        sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
        losses, seen = list[torch.Tensor](), 0
        for batch in batches(examples, self.batch_size, self.push_every, seed, self.whole):
            losses.append(backprop(objective, network, batch))
            if not seen:
                check_unchanged(network, objective.layout.params, start.params, LOCAL)
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    sums[name].add_(parameter.grad)
            descend(list(parameters.values()), lr)
            seen += len(batch)
        specs = objective.layout.params
        return Update(
            direction=pack(specs, sums),
            buffers=buffers_of(objective, network, state),
            weight=seen,
            metrics={"train_loss": mean_loss(losses).item()},
            carry={"replica": pack(specs, dict(network.named_parameters()))} if self.carry else {},
        )
