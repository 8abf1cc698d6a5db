"""Whether a network whose units are shared has the function and the gradients that it has as a whole."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.utils import _pytree as pytree

from storage.values.state import State
from storage.values.tensors import pack
from tasks.matching.check import TOLERANCE, randomise
from tasks.networks.objective import Objective, bound_network
from tasks.teams.networks import ShareObjective
from tasks.teams.shares import Shares
from tasks.teams.team import Team, in_turn


def is_sound(objective: Objective, inputs: torch.Tensor, shares: Shares) -> bool:
    """Whether outputs and gradients on inputs (examples, *) agree in float64, with parameters drawn at random."""
    doubled = replace(objective, model=replace(objective.model, dtype="float64"))
    layout = doubled.layout
    shares = replace(shares, layout=layout)
    network = doubled.network(doubled.initial())
    randomise(network, torch.Generator().manual_seed(0))
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    state = State(pack(layout.params, named), pack(layout.buffers, named), pack(layout.frozen, named))
    batch = inputs.double() if inputs.is_floating_point() else inputs

    def of_rank(team: Team) -> dict[str, dict[str, torch.Tensor]]:
        share = ShareObjective.of(doubled, shares, team)
        return _numbers(share.network(shares.state(state, team.rank)), batch)

    whole = _numbers(bound_network(doubled.built, layout, state), batch)
    try:
        parts = in_turn(shares.ranks, of_rank)
    except RuntimeError:  # sizes that do not fit: something else counts the units
        return False
    return all(
        _close(shares.share(name, tensor, rank), part[kind][name], scale)
        for kind, numbers in whole.items()
        for scale in [max(tensor.abs().max().item() for tensor in numbers.values())]
        for rank, part in enumerate(parts)
        for name, tensor in numbers.items()
    )


def _numbers(network: nn.Module, inputs: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
    """The outputs of a network, and the gradients of their sum with weights drawn at random, by name."""
    leaves = [leaf for leaf in pytree.tree_leaves(network.eval()(inputs)) if isinstance(leaf, torch.Tensor)]
    generator = torch.Generator().manual_seed(1)
    weighted = [(leaf * torch.randn(leaf.shape, generator=generator).to(leaf)).sum() for leaf in leaves]
    torch.stack(weighted).sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {"outputs": {str(n): leaf.detach() for n, leaf in enumerate(leaves)}, "gradients": gradients}


def _close(one: torch.Tensor, other: torch.Tensor, scale: float) -> bool:
    """Whether tensors are the same up to rounding: a gradient may be zero in truth, and others give the scale."""
    return one.shape == other.shape and bool(((one - other).abs() <= TOLERANCE * scale).all())
