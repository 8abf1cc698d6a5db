"""Whether replicas can be trained side by side, to the bits that each has anywhere: tried, not assumed."""

from __future__ import annotations

import torch
from torch import nn

from storage.errors import ModelError, failing_as, one_line
from storage.values.tensors import same_bits
from tasks.compute.stacked.replicas import Replicas, Stacked
from tasks.data.examples import Examples
from tasks.maps.backprop import backprop, descend
from tasks.networks.objective import Objective
from tasks.numerics import derive_seed, pinned
from tasks.user_code import Code

RATE = 1 / 7
"""The learning rate of a step that is tried: no type of numbers holds it, so its rounding shows."""

RANDOM = "it draws random numbers, as dropout does"


def check_stackable(stacked: Stacked, examples: Examples) -> None:
    """Raise `ModelError` for networks that cannot be trained side by side on examples, or not to the same bits.

    Tried are a step of one network, and the same step of replicas with other parameters each.
    """
    objective, count = stacked.objective, stacked.count
    with failing_as(lambda error: refusal(objective, f"they fail with {one_line(error)}")):
        state = objective.initial()
        alone, network = objective.network(state), stacked.network(state)
        _check_alone(objective, alone, examples)
        _scatter(network)
        batch = Examples(*(t.expand(count, *t.shape).contiguous() for t in (examples.inputs, examples.targets)))
        _check_apart(stacked, network, batch)
        _check_agreement(stacked, alone, network, batch)


def _check_apart(stacked: Stacked, network: Replicas, batch: Examples) -> None:
    """Raise unless the bits of a replica's step depend neither on its place nor on its neighbours.

    Tried is a step of the network, which is as before in the end, on a batch (replica, example, *).
    """
    places = torch.arange(stacked.count)
    order = torch.randperm(stacked.count, generator=torch.Generator().manual_seed(derive_seed("order")))
    each, again, moved, same = (
        _stepped(stacked, network, batch, chosen, seed)
        for seed, chosen in enumerate((places, places, order, places * 0))
    )
    if not all(map(same_bits, each, again)):
        raise refusal(stacked.objective, RANDOM)
    for here, there, copies in zip(each, moved, same, strict=True):
        if not (same_bits(here[order], there) and same_bits(here[:1].expand_as(copies), copies)):
            why = "a step of one has other bits in another place, or beside others"
            raise refusal(stacked.objective, why, ", or try a multiple of 64 or another batch_size")


def _stepped(
    stacked: Stacked, network: Replicas, batch: Examples, places: torch.Tensor, seed: int
) -> list[torch.Tensor]:
    """Losses and parameters after a step of the replicas of some places, with a seed for the generators."""
    parameters = list(network.trained.values())
    before = [parameter.detach().clone() for parameter in parameters]
    with pinned(seed, torch.get_num_threads()):
        for parameter, earlier in zip(parameters, before, strict=True):
            parameter.data.copy_(earlier[places])
        losses = backprop(stacked, network, Examples(batch.inputs[places], batch.targets[places]))
        descend(parameters, RATE)
    after = [parameter.detach().clone() for parameter in parameters]
    for parameter, earlier in zip(parameters, before, strict=True):
        parameter.data.copy_(earlier)
    return [losses, *after]


def _check_alone(objective: Objective, network: nn.Module, examples: Examples) -> None:
    """Raise for a network whose step changes more than its parameters, or draws random numbers."""
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    losses = []
    for seed in (0, 1):  # the generators are not compared: other threads of a worker draw from them, too
        with pinned(seed, torch.get_num_threads()), torch.no_grad():
            losses.append(objective.value(network(examples.inputs), examples.targets))
    for name, buffer in network.named_buffers():
        if not same_bits(buffers[name], buffer):
            raise refusal(objective, f"training changes its buffer {name}, as BatchNorm does")
    if not same_bits(*losses):
        raise refusal(objective, RANDOM)


def _check_agreement(stacked: Stacked, alone: nn.Module, network: Replicas, batch: Examples) -> None:
    """Raise unless the first replica's gradient is that of the network alone, up to rounding."""
    objective, own = stacked.objective, dict(alone.named_parameters())
    for name, parameter in network.trained.items():
        own[name].data.copy_(parameter[0])
    alone.zero_grad()
    backprop(stacked, network, batch)
    objective.value(alone(batch.inputs[0]), batch.targets[0]).backward()
    wanted = torch.cat([_flat(own[name], own[name].grad) for name in network.trained])
    found = torch.cat(
        [_flat(own[name], p.grad if p.grad is None else p.grad[0]) for name, p in network.trained.items()]
    )
    if (found - wanted).norm() > wanted.norm() * torch.finfo(wanted.dtype).eps ** 0.5:
        raise refusal(objective, "the gradient of one is another one than alone")


def _flat(parameter: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()


def _scatter(network: Replicas) -> None:
    """Give each replica parameters of its own."""
    generator = torch.Generator().manual_seed(derive_seed("replicas"))
    for parameter in network.trained.values():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.mul_((1 + noise / 8).to(parameter.dtype))


def refusal(objective: Objective, why: str, advice: str = "") -> ModelError:
    """That networks cannot be stacked, and why."""
    model = objective.model.model
    name = model.reference if isinstance(model, Code) else model
    return ModelError(f"replicas of model {name} cannot be stacked: {why}; leave stacked at 1{advice}")
