"""Find out how ranks can share a network: which unit groups they divide, and what each rank has of each tensor.

`tasks/matching` finds the unit groups: which axes of which tensors belong together. A group can be divided if
linear layers make its units and only linear layers take them, and nothing between these layers mixes units.
Whether something does is tried: ranks must compute what the whole network does, in training and in scoring.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from roundweave.flows.plugins.tensor_parallel.layers import ShareObjective, attention_of
from roundweave.flows.plugins.tensor_parallel.one_process import as_ranks
from roundweave.flows.plugins.tensor_parallel.shares import Count, Cut, Shares, Spans, even
from roundweave.storage.errors import ModelError, UsageError, failing_as, one_line, spans
from roundweave.storage.values.state import Layout, State, layout_of
from roundweave.storage.values.tensors import differences
from roundweave.tasks.algorithms.maps.optimizers import trained_of
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.matching.check import TOLERANCE, randomise
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.matching.unofficial import TorchDispatchMode, tensors_in
from roundweave.tasks.networks.objective import Objective, named_tensors
from roundweave.tasks.numerics.pinning import pinned

LARGER = 8.0
"""The factor of the larger parameters that are tried, too, as they reach operations that clip or saturate."""

Numbers = dict[str, dict[str, torch.Tensor]]
"""Tensors of a step by kind, such as ``output``, and name."""


def is_sound(objective: Objective, inputs: torch.Tensor, shares: Shares) -> bool:
    """Whether a step of the ranks on inputs (example, *) is that of the whole network.

    It tries the network's own parameters, random ones, and larger ones. Raises `ModelError` if the whole network
    cannot compute in float64.
    """
    return all(difference(objective, inputs, shares, state) is None for state in _states(objective))


def _states(objective: Objective) -> Iterator[State]:
    yield objective.initial()
    network = objective.fresh()
    randomise(network, torch.Generator().manual_seed(0))
    random = objective.packed(dict([*network.named_parameters(), *network.named_buffers()]))
    yield random
    yield replace(random, params={name: LARGER * vector for name, vector in random.params.items()})


def difference(objective: Objective, inputs: torch.Tensor, shares: Shares, state: State) -> str | None:
    """What differs between a step of the ranks and one of the whole network, from a state; None if nothing does.

    The steps are in float64, on inputs (example, *). It compares outputs and buffers in training, the gradients of
    randomly weighted outputs, and outputs in scoring, up to rounding. Ranks draw other random numbers than the
    whole network, so all random numbers are replaced by one constant; it only compares that all ranks draw equally
    many where they should draw the same. If the whole network gives numbers that are not finite, nothing can be
    said, and the result is None.
    """
    doubled, state, batch = _doubled(objective, state, inputs)
    shares = replace(shares, layout=doubled.layout)
    what = f"{type(doubled.built).__name__} cannot be tried in float64"
    failing = failing_as(lambda error: ModelError(f"{what}: {one_line(error)}"))
    with failing, pinned(0, torch.get_num_threads()):
        whole = _numbers(doubled.network(state), batch)

    def of_rank(group: Communicator) -> tuple[Numbers, torch.Tensor]:
        share = ShareObjective.of(doubled, shares, group, apart=True)
        return _numbers(share.network(shares.state(state, group.rank)), batch), torch.get_rng_state()

    with pinned(0, torch.get_num_threads()):
        try:
            parts, generators = zip(*as_ranks(shares.ranks, of_rank), strict=True)
        except Exception as error:  # noqa: BLE001 - a network that counts its units may raise anything on a share
            return f"a step of a share fails with {one_line(error)}"
    if not all(torch.equal(generators[0], other) for other in generators):
        return "ranks draw unlike many random numbers"
    return _differing(shares, whole, parts)


def _differing(shares: Shares, whole: Numbers, parts: Sequence[Numbers]) -> str | None:
    if not all(tensor.isfinite().all() for numbers in whole.values() for tensor in numbers.values()):
        return None
    for kind, numbers in whole.items():
        # A gradient may really be zero, so the scale is that of all tensors of its kind.
        scale = max((tensor.abs().max().item() for tensor in numbers.values() if tensor.numel()), default=0.0)
        for rank, part in enumerate(parts):
            share = {name: shares.share(name, tensor, rank) for name, tensor in numbers.items()}
            here = {name: tensor for name, tensor in part[kind].items() if name in share}
            for name, apart in differences(share, here):
                if apart is None or apart > TOLERANCE * scale:
                    return f"{kind} {name} is another one on rank {rank}"
    return None


def _doubled(objective: Objective, state: State, inputs: torch.Tensor) -> tuple[Objective, State, torch.Tensor]:
    """The objective, the state and the inputs, converted to float64."""
    doubled = replace(objective, model=replace(objective.model, dtype="float64"))
    tensors = named_tensors(objective.layout, state.params, state.buffers, state.frozen)
    whole = doubled.packed({name: tensor.double() for name, tensor in tensors.items()})
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return doubled, replace(whole, round=state.round), inputs


class _Alike(TorchDispatchMode):
    """Replaces all random numbers by one constant, so that it does not matter which or how many are drawn."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and isinstance(drawn, torch.Tensor):
            drawn.fill_(0.5) if drawn.is_floating_point() else drawn.zero_()
        return drawn


def _numbers(network: nn.Module, inputs: torch.Tensor) -> Numbers:
    """The outputs, gradients and buffers of a step on inputs (example, *), and the outputs in scoring."""
    generator = torch.Generator().manual_seed(1)
    with _Alike():
        outputs = tensors_in(network(inputs))
    weights = [torch.randn(leaf.shape, generator=generator).to(leaf) for leaf in outputs]
    with _Alike():
        sums = [(leaf * weight).sum() for leaf, weight in zip(outputs, weights, strict=True)]
        torch.stack(sums).sum().backward()
    with torch.no_grad():
        scored = tensors_in(network.eval()(inputs))
    return {
        "output": {str(number): leaf.detach() for number, leaf in enumerate(outputs)},
        "gradient of": {name: p.grad for name, p in network.named_parameters() if p.grad is not None},
        "buffer": {name: buffer.double() for name, buffer in network.named_buffers()},
        "output in scoring": {str(number): leaf for number, leaf in enumerate(scored)},
    }


PER_UNIT = (nn.modules.batchnorm._BatchNorm, nn.PReLU)
"""Layers with parameters that treat each unit independently of the others."""

LARGE = 16
"""A layer outside all groups is sliced if it has more than 1 / LARGE of a network's elements."""

Role = Literal["column", "row", "heads", "between"]


def find_shares(
    objective: Objective, inputs: torch.Tensor, ranks: int, units: Sequence[str] = (), hybrid: bool = False
) -> Shares:
    """Find out how ranks can share a network, and try it on inputs (example, *).

    `units` names the unit groups to divide. Without names, groups are left out with which the network would
    compute another function, and the inputs of large layers outside all groups are divided, too. If `hybrid`, the
    batch is divided before the shared layers. Raises `ModelError` if the network cannot be shared so.
    """
    inputs = enough(inputs, ranks)
    network = objective.fresh()
    fitting = candidates(network, inputs, ranks)
    sound = functools.partial(is_sound, objective, inputs)
    for divided in [_named(fitting, units)] if units else _choices(fitting, sound):
        shares = _with_hybrid(network, inputs, divided) if hybrid else divided
        wider = shares if units else _with_slices(network, shares)
        if sound(wider):
            return wider
        if wider is not shares and sound(shares):
            return shares
    if hybrid:
        raise ModelError(f"shares of the batch before {shares.joins} give another function; leave hybrid out")
    raise ModelError(
        f"shares of units {', '.join(shares.units)} give another function than all of them: something "
        "between their layers mixes units, counts them, or draws for some; name others as `units`, or leave "
        "ranks out"
    )


def _choices(fitting: Mapping[str, Shares], sound: Callable[[Shares], bool]) -> Iterator[Shares]:
    """Yield the best groups; then the best of those that are sound on their own, and the largest of these."""
    yield _best(fitting)
    alone = {name: shares for name, shares in fitting.items() if sound(shares)}
    if alone:
        yield _best(alone)
        yield max(alone.values(), key=_elements)


def enough(inputs: torch.Tensor, ranks: int) -> torch.Tensor:
    """Inputs (example, *), repeated until there are at least as many as ranks."""
    return torch.cat([inputs] * -(-ranks // len(inputs)))


def candidates(network: nn.Module, inputs: torch.Tensor, ranks: int) -> dict[str, Shares]:
    """The unit groups that ranks may divide, by name, each with the shares if only this group is divided.

    `inputs` are (example, *). Raises `ModelError` if there is none. Whether the network still computes the same
    function is not tried here.
    """
    # What the inputs do not reach stays as it is, since no unit changes its place.
    units, layout = find_units(network, (inputs,)), layout_of(network)
    shared = {name: _shares(network, layout, units, name, ranks) for name in units.groups}
    fitting = {name: shares for name, shares in shared.items() if shares is not None}
    if not fitting:
        raise ModelError(
            f"{type(network).__name__} has no linear layers whose units {ranks} ranks could share; leave ranks out"
        )
    return fitting


def _shares(network: nn.Module, layout: Layout, units: UnitGroups, group: str, ranks: int) -> Shares | None:
    """The shares if one group is divided; None if it is too small, or if its layers cannot be divided."""
    size = units.groups[group].size
    if units.groups[group].parents or size < ranks:
        return None
    cuts: dict[str, Cut] = {}
    roles: dict[str, Role] = {}
    for tensor, axis in dict.fromkeys((tensor, axis) for tensor, axis, _ in units.members(group)):
        unit, place = _unit_of_index(units, group, tensor, axis), _place(network, tensor, axis, size)
        if tensor in cuts or place is None or (place[1] != "between" and (unit < 0).any()):
            return None
        # Indices of other groups go to all ranks.
        masks = [(unit < 0) | ((unit >= first) & (unit < end)) for first, end in even(size, ranks)]
        cuts[tensor] = Cut(axis, tuple(map(_spans, masks)))
        roles.setdefault(*place)
    column, row, heads = (tuple(n for n in roles if roles[n] == role) for role in ("column", "row", "heads"))
    if not heads and not (column and row):
        return None
    counts = tuple(_counts(network, column, size, units, group, ranks))
    return Shares(ranks, layout, cuts, column, row, heads, counts=counts, units=(group,))


def _place(network: nn.Module, tensor: str, axis: int, size: int) -> tuple[str, Role] | None:
    """The layer to which an axis of `size` units of a tensor belongs, and its role; None if it cannot be divided.

    The role is ``column`` for layers that make the units, ``row`` for layers that take them, ``heads`` for
    attention that does both, and ``between`` for what treats each unit alone.
    """
    owner, _, name = tensor.rpartition(".")
    module = network.get_submodule(owner)
    if isinstance(module, PER_UNIT):
        return tensor, "between"
    if type(module) is nn.Linear and name in ("weight", "bias"):
        return (owner, "row" if axis else "column") if name == "weight" else (tensor, "between")
    attention = attention_of(network, tensor, axis, size)
    return None if attention is None else (attention, "heads")


def _unit_of_index(units: UnitGroups, group: str, tensor: str, axis: int) -> torch.Tensor:
    """The number of a group's unit that each index of a tensor's axis belongs to, int32 (index,); -1 for none."""
    numbers = torch.full(units.tensors[tensor], -1, dtype=torch.int32)
    for piece in units.pieces:
        if piece.tensor == tensor and group in piece.groups:
            dim = piece.groups.index(group)
            each = torch.arange(piece.shape[dim], dtype=torch.int32)
            piece.view(numbers).copy_(each.reshape(-1, *[1] * (len(piece.shape) - dim - 1)))
    return numbers.movedim(axis, 0).flatten(1).amax(1) if numbers.ndim > 1 else numbers


def _spans(mask: torch.Tensor) -> Spans:
    """The spans of true values in a mask, bool (index,), over the indices of an axis."""
    return tuple((first, last + 1) for first, last in spans(mask.nonzero().flatten().tolist()))


def _counts(
    network: nn.Module, column: Sequence[str], size: int, units: UnitGroups, group: str, ranks: int
) -> Iterator[Count]:
    """Yield the integer attributes that count heads, or the units of all heads, and differ on each rank.

    They are those of the modules around the layers `column`.
    """
    inner = [g.size for g in units.groups.values() if g.parents == (group,)]
    if not inner:
        return
    local = [end - first for first, end in even(size, ranks)]
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in column):
        for attribute, value in vars(network.get_submodule(owner)).items():
            if type(value) is int and value in {size, *(size * each for each in inner)}:
                yield Count(owner, attribute, tuple(value // size * each for each in local))


def _with_slices(network: nn.Module, shares: Shares) -> Shares:
    """Add slices of the inputs of large linear layers, which every rank would have as a whole otherwise.

    Layers of which ranks have different examples are left out, and so are weights that several layers share.
    """
    specs = {spec.name: spec for spec in (*shares.layout.params, *shares.layout.frozen)}
    least = sum(spec.size for spec in specs.values()) / LARGE
    tied = {first for _, first in shares.layout.aliases}
    cuts: dict[str, Cut] = {}
    for name, module in network.named_modules():
        weight = f"{name}.weight".removeprefix(".")
        fits = type(module) is nn.Linear and weight in specs.keys() - shares.cuts - shares.before - tied
        if fits and specs[weight].size > least and specs[weight].shape[1] >= shares.ranks:
            cuts[weight] = Cut(1, tuple((span,) for span in even(specs[weight].shape[1], shares.ranks)))
    names = tuple(weight.rpartition(".")[0] for weight in cuts)
    return replace(shares, cuts={**shares.cuts, **cuts}, sliced=names) if cuts else shares


def _best(fitting: Mapping[str, Shares]) -> Shares:
    """Divide the groups that cut the most elements. Of groups that meet in one tensor, only one can be divided."""

    def elements(names: tuple[str, ...]) -> int:
        return sum(_elements(fitting[name]) for name in names)

    @functools.cache
    def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            return ()
        first, *rest = names
        clear = tuple(name for name in rest if not fitting[name].cuts.keys() & fitting[first].cuts.keys())
        return max((first, *chosen(clear)), chosen(tuple(rest)), key=elements)

    return _together([fitting[name] for name in chosen(tuple(fitting))])


def _elements(shares: Shares) -> int:
    """How many elements of parameters are in tensors that are cut."""
    return sum(spec.size for spec in shares.layout.params if spec.name in shares.cuts)


def _named(fitting: Mapping[str, Shares], names: Sequence[str]) -> Shares:
    """Divide the groups of these names; raises `UsageError` if one cannot be divided, or not with the others."""
    for name in names:
        if name not in fitting:
            raise UsageError(
                f"units {name!r} cannot be shared by ranks; those of {', '.join(sorted(fitting))} can"
            )
    chosen = [fitting[name] for name in dict.fromkeys(names)]
    for number, shares in enumerate(chosen):
        if clash := [other.units[0] for other in chosen[:number] if shares.cuts.keys() & other.cuts.keys()]:
            raise UsageError(f"units {shares.units[0]!r} and {clash[0]!r} meet in one layer; share one of them")
    return _together(chosen)


def _together(parts: Sequence[Shares]) -> Shares:
    """The shares if several groups are divided at once, from the shares of each alone."""
    names = ("column", "row", "heads", "counts", "units")
    all_of: dict[str, Any] = {
        name: tuple(each for part in parts for each in getattr(part, name)) for name in names
    }
    return replace(parts[0], cuts={name: cut for part in parts for name, cut in part.cuts.items()}, **all_of)


def _with_hybrid(network: nn.Module, inputs: torch.Tensor, shares: Shares) -> Shares:
    """Add to shares that ranks divide the examples of a batch up to the first of the shared layers.

    `inputs` are (example, *). Raises `ModelError` if nothing is trained before that layer, or examples interact
    there, or if the layer cannot take the divided batch.
    """
    order: list[tuple[str, torch.Tensor | None]] = []

    def note(name: str) -> Any:
        return lambda _, given: order.append((name, given[0] if name in shares.column and given else None))

    handles = [module.register_forward_pre_hook(note(name)) for name, module in network.named_modules()]
    network.eval()(inputs)
    for handle in handles:
        handle.remove()
    starts = (number for number, (name, _) in enumerate(order) if name in {*shares.column, *shares.heads})
    first, features = order[at := next(starts)]
    if features is None:
        raise ModelError(f"{first} cannot join shares of a batch, as linear layers do; leave hybrid out")
    for name, _ in order[:at]:
        if isinstance(network.get_submodule(name), nn.modules.batchnorm._BatchNorm):
            raise ModelError(f"{name} normalises over the batch, of which ranks have shares; leave hybrid out")
    before = _reached(network, features)
    if not before:
        raise ModelError(f"nothing is trained before {first}, the first of the shared layers; leave hybrid out")
    return replace(shares, joins=first, before=before)


def _reached(network: nn.Module, features: torch.Tensor) -> frozenset[str]:
    """The names of the trained parameters from which features were computed."""
    named = trained_of(network)
    if not features.requires_grad:
        return frozenset()
    gradients = torch.autograd.grad(features.sum(), list(named.values()), allow_unused=True)
    return frozenset(name for name, gradient in zip(named, gradients, strict=True) if gradient is not None)
