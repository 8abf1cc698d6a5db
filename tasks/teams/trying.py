"""Whether a network whose units are shared has the function and the gradients that it has as a whole."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.utils import _pytree as pytree

from storage.errors import ModelError, one_line
from storage.values.layout import Layout
from storage.values.state import State
from storage.values.tensors import pack
from tasks.matching.check import TOLERANCE, randomise
from tasks.networks.objective import ModelSpec, Objective, layout_of
from tasks.numerics import pinned
from tasks.teams.networks import ShareObjective
from tasks.teams.shares import Shares
from tasks.teams.team import Team, in_turn

Numbers = dict[str, dict[str, torch.Tensor]]


def is_sound(objective: Objective, inputs: torch.Tensor, shares: Shares) -> bool:
    """Whether outputs and gradients on inputs (examples, *) agree in float64, with parameters drawn at random.

    So must what ranks draw for all of them in training, which else would drift apart.

    Raises `ModelError` where the network as a whole has no float64.
    """
    doubled = replace(objective, model=replace(objective.model, dtype="float64"))
    batch = inputs.double() if inputs.is_floating_point() else inputs
    with pinned(0, torch.get_num_threads()):
        layout, state, whole = _tried(doubled.model, batch)
        shares = replace(shares, layout=layout)

        def of_rank(team: Team) -> tuple[Numbers, torch.Tensor]:
            share = ShareObjective.of(doubled, shares, team, apart=True)
            network = share.network(shares.state(state, team.rank))
            numbers = _numbers(network, batch)
            network.train()(batch)
            return numbers, torch.get_rng_state()

        try:
            parts, drawn = zip(*in_turn(shares.ranks, of_rank), strict=True)
        except Exception:  # noqa: BLE001 - whatever a network makes of sizes that do not fit: it counts the units
            return False
    return all(torch.equal(drawn[0], other) for other in drawn) and all(
        _close(shares.share(name, tensor, rank), part[kind][name], scale)
        for kind, numbers in whole.items()
        for scale in [max(tensor.abs().max().item() for tensor in numbers.values())]
        for rank, part in enumerate(parts)
        for name, tensor in numbers.items()
    )


def _tried(model: ModelSpec, inputs: torch.Tensor) -> tuple[Layout, State, Numbers]:
    """A whole network with parameters drawn at random: its layout, its state, and its numbers."""
    network = model.build()
    layout = layout_of(network)
    randomise(network, torch.Generator().manual_seed(0))
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    state = State(pack(layout.params, named), pack(layout.buffers, named), pack(layout.frozen, named))
    try:
        return layout, state, _numbers(network, inputs)
    except Exception as error:
        raise ModelError(f"{type(network).__name__} cannot be tried in float64: {one_line(error)}") from error


def _numbers(network: nn.Module, inputs: torch.Tensor) -> Numbers:
    """The outputs of a network, and the gradients of their sum with weights drawn at random, by name."""
    leaves = _outputs(network.eval(), inputs)
    with torch.no_grad():  # scores may take another way
        scored = _outputs(network, inputs)
    generator = torch.Generator().manual_seed(1)
    weighted = [(leaf * torch.randn(leaf.shape, generator=generator).to(leaf)).sum() for leaf in leaves]
    torch.stack(weighted).sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    outputs = {str(number): leaf.detach() for number, leaf in enumerate([*leaves, *scored])}
    return {"outputs": outputs, "gradients": gradients}


def _outputs(network: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(network(inputs)) if isinstance(leaf, torch.Tensor)]


def _close(one: torch.Tensor, other: torch.Tensor, scale: float) -> bool:
    """Whether tensors are the same up to rounding: a gradient may be zero in truth, and others give the scale."""
    return one.shape == other.shape and bool(((one - other).abs() <= TOLERANCE * scale).all())
