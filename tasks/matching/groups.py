"""Unit groups: interchangeable units, their places in a network's tensors, and how to permute them.

The idea of permutation symmetries as data follows Git Re-Basin (Ainsworth, Hayase and Srinivasa 2023, section 3).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from roundweave.storage.errors import ShapeMismatch

Permutation = Mapping[str, torch.Tensor]
"""For each group int64 (*sizes of its parents, size): new unit i is old unit ``permutation[..., i]``."""
Tensors = Mapping[str, torch.Tensor]
"""A network's tensors by name, of the network's shapes."""


@dataclass(frozen=True)
class UnitGroup:
    """A unit group: `size` interchangeable units, with their own order at each index of its `parents`.

    The parents are other groups, the outermost first; for example, attention heads are the parent of their
    dimensions.
    """

    name: str
    size: int
    parents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A strided part of a contiguous tensor; `groups` has a group for each dimension, None for pinned indices.

    `axes` has the axis of the tensor on which each dimension lies.
    """

    tensor: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    groups: tuple[str | None, ...]
    axes: tuple[int, ...]

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this part (*shape) of a contiguous tensor, sharing its memory."""
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.offset)

    def pair(self, one: Tensors, other: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this part of two networks, as `as_real` gives it.

        Raises `ShapeMismatch` if only one is complex.
        """
        a, b = (state[self.tensor] for state in (one, other))
        if a.is_complex() != b.is_complex():
            raise ShapeMismatch(f"tensor {self.tensor} is complex in one network and real in another")
        first, second = (as_real(self.view(each.contiguous())) for each in (a, b))
        wide = torch.promote_types(first.dtype, second.dtype)
        return first.to(wide), second.to(wide)


@dataclass(frozen=True)
class Span:
    """The units along an axis: their number, their groups and, if they are in none, why they are pinned."""

    units: int
    groups: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class UnitGroups:
    """A network's groups of interchangeable units, where they lie, and what is pinned and why.

    `pinned` maps each tensor without a free axis, or with units that may be in orders that are not looked for, to
    the reason; `unknown` maps operations without a rule to the place where they stand first; `spans` are the units
    of all axes, free and pinned; `taps` are the values in the graph that show units at work, as pieces;
    `statistics` names the tensors that are buffers; `inputs` has the shapes of the example inputs.
    """

    groups: Mapping[str, UnitGroup]
    pieces: tuple[Piece, ...]
    tensors: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    pinned: Mapping[str, str]
    unknown: Mapping[str, str]
    spans: tuple[Span, ...] = ()
    taps: tuple[Piece, ...] = ()
    statistics: frozenset[str] = frozenset()
    inputs: tuple[tuple[int, ...], ...] = ()

    @property
    def batch(self) -> int:
        """The number of example inputs."""
        return self.inputs[0][0] if self.inputs and self.inputs[0] else 1

    @property
    def coverage(self) -> float:
        """The share of the tensors that are not pinned."""
        counted = [name for name, shape in self.tensors.items() if math.prod(shape) > 1]
        return 1 - len(self.pinned) / len(counted) if counted else 0.0

    @property
    def free_units(self) -> int:
        """How many units can be permuted; a tensor counts as covered if those on one of its axes can."""
        return sum(span.units for span in self.spans if self.groups.keys() & set(span.groups))

    @property
    def pinned_units(self) -> dict[str, int]:
        """How many units are pinned, by the reason."""
        counts: Counter[str] = Counter()
        for span in self.spans:
            if not self.groups.keys() & set(span.groups):
                counts[span.why or "frozen"] += span.units
        return dict(counts.most_common())

    def members(self, group: str) -> list[tuple[str, int, int]]:
        """Return where a group is: (tensor, axis, offset of the segment in the tensor's memory)."""
        return [
            (piece.tensor, axis, piece.offset)
            for piece in self.pieces
            for name, axis in zip(piece.groups, piece.axes, strict=True)
            if name == group
        ]

    def identity(self) -> dict[str, torch.Tensor]:
        """Return the permutation that changes nothing: int64 (*sizes of parents, size) for each group."""
        return {
            name: torch.arange(group.size).expand(*self._outer(group), group.size).contiguous()
            for name, group in self.groups.items()
        }

    def random(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return a random permutation: int64 (*sizes of parents, size) for each group."""
        drawn = {}
        for name, group in self.groups.items():
            rows = [torch.randperm(group.size, generator=generator) for _ in range(math.prod(self._outer(group)))]
            drawn[name] = torch.stack(rows).reshape(*self._outer(group), group.size)
        return drawn

    def permute(self, state: Tensors, permutation: Permutation) -> dict[str, torch.Tensor]:
        """Return a network's named tensors with their units in another order, of the same shapes.

        Raises `ShapeMismatch`.

        Tensors without these units are not changed, and the network's function stays the same. The version
        metadata of a module's `state_dict` is kept.
        """
        for _ in self.checked(state):  # one by one, as all may not fit into memory
            pass
        self.check_order(permutation)
        own = {name: self.permuted(name, state, permutation) for name in state if name not in self.aliases}
        permuted = OrderedDict((name, own[self.aliases.get(name, name)]) for name in state)
        vars(permuted).update(getattr(state, "__dict__", {}))
        return permuted

    def permuted(self, name: str, state: Tensors, permutation: Permutation) -> torch.Tensor:
        """Return one tensor of `permute`, (*shape); other tensors and the permutation's shapes are not checked."""
        first = self.aliases.get(name, name)
        tensor = moved = state[first]
        for piece in self.pieces:
            if piece.tensor == first and any(group in permutation for group in piece.groups):
                source = piece.view(tensor.contiguous())
                ordered = rearranged(source, piece.groups, self.groups, permutation)
                if source.is_contiguous() and source.numel() == tensor.numel():
                    return ordered.reshape(tensor.shape)  # the piece is the whole tensor
                if moved is tensor:
                    moved = tensor.clone(memory_format=torch.contiguous_format)
                piece.view(moved).copy_(ordered)
        return moved

    def check_order(self, permutation: Permutation) -> None:
        """Raise `ShapeMismatch` for an unknown group, or a table that is neither a permutation nor a mixture."""
        for name, table in permutation.items():
            if name not in self.groups:
                raise ShapeMismatch(f"there is no group {name!r}; there are {', '.join(self.groups) or 'none'}")
            group = self.groups[name]
            mixture = table.is_floating_point() and table.shape == (group.size, group.size)
            wanted = (*self._outer(group), group.size)
            if mixture or (tuple(table.shape) == wanted and _is_order(table)):
                continue
            raise ShapeMismatch(f"the table of group {name} is no permutation of shape {wanted}, nor a mixture")

    def invert(self, permutation: Permutation) -> dict[str, torch.Tensor]:
        """Return the inverse permutation: int64 (*sizes of parents, size) for each group."""
        inverse: dict[str, torch.Tensor] = {}
        for name in sorted(permutation, key=lambda name: len(self.groups[name].parents)):
            outer = self.lookup(self.groups[name], inverse)
            inverse[name] = permutation[name][outer].argsort(-1)
        return inverse

    def compose(self, first: Permutation, then: Permutation) -> dict[str, torch.Tensor]:
        """Return the permutation that does `first`, then `then`: int64 (*sizes of parents, size) for each group.

        Groups that a permutation does not name keep their order in it.
        """
        both = dict(then)
        for name, table in first.items():
            moved = table[self.lookup(self.groups[name], then)]
            both[name] = moved.gather(-1, then[name]) if name in then else moved
        return both

    def moved(self, permutation: Permutation) -> float:
        """Return the share of units that come to another place.

        In a mixture, those that are mostly another unit.
        """
        home = self.identity()
        now = {n: t.argmax(1) if t.is_floating_point() else t for n, t in permutation.items()}
        total = sum(table.numel() for table in home.values())
        return sum((now[name] != table).sum().item() for name, table in home.items()) / max(total, 1)

    def lookup(self, group: UnitGroup, permutation: Permutation) -> tuple[torch.Tensor, ...]:
        """Return the old index of each parent at its new indices, as a tuple that can index a table of the group.

        The tensor at depth d is int64 (*sizes of parents up to d, 1, …), so that all broadcast.
        """
        sizes = self._outer(group)
        indices = []
        for depth, parent in enumerate(group.parents):
            table = permutation.get(parent)
            if table is None:
                table = torch.arange(sizes[depth]).expand(*sizes[: depth + 1])
            indices.append(table.reshape(*sizes[: depth + 1], *[1] * (len(sizes) - depth - 1)))
        return tuple(indices)

    def without(self, tensors: Iterable[str]) -> UnitGroups:
        """Only the groups that do not occur in some tensors.

        Groups that depend on a removed one are removed, too.
        """
        fixed = set(tensors)
        lost = {group for piece in self.pieces if piece.tensor in fixed for group in piece.groups}
        groups = {n: g for n, g in self.groups.items() if n not in lost and not lost & set(g.parents)}
        pinned = dict.fromkeys(fixed & set(self.tensors), "frozen") | dict(self.pinned)
        rest = replace(self, groups=groups, pinned=pinned)
        return replace(rest, pieces=rest.left(self.pieces), taps=rest.left(self.taps))

    def left(self, pieces: Iterable[Piece]) -> tuple[Piece, ...]:
        """Return the pieces that have units of these groups; units of other groups are pinned in them."""
        return tuple(
            replace(piece, groups=tuple(name if name in self.groups else None for name in piece.groups))
            for piece in pieces
            if any(name in self.groups for name in piece.groups)
        )

    def mixes(self, name: str) -> bool:
        """Whether a group's units may be mixed, which needs a group without parents that is no parent itself."""
        return not self.groups[name].parents and all(name not in group.parents for group in self.groups.values())

    def similarity(self, one: Tensors, other: Tensors) -> dict[str, torch.Tensor]:
        """Return the cosine between the weights of the units at the same places of two networks.

        For each group it is float32 (*sizes of parents, size); of complex weights it is the real part.
        """
        totals = {name: torch.zeros(3, *table.shape) for name, table in self.identity().items()}
        for piece in self.pieces:
            if piece.tensor not in self.statistics:
                a, b = piece.pair(one, other)
                for dim, name in enumerate(piece.groups):
                    if name is not None:
                        path = [*(piece.groups.index(parent) for parent in self.groups[name].parents), dim]
                        totals[name] += torch.stack([_summed(product, path) for product in (a * b, a * a, b * b)])
        return {name: sums[0] / (sums[1] * sums[2]).sqrt().clamp_min(1e-30) for name, sums in totals.items()}

    def checked(self, state: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a state's tensors one by one with their names. Raises `ShapeMismatch` for a wrong shape."""
        for name, shape in self.tensors.items():
            tensor = state.get(name)
            if tensor is None or tuple(tensor.shape) != shape:
                given = "missing" if tensor is None else tuple(tensor.shape)
                raise ShapeMismatch(f"tensor {name} is {given}, the network that was analysed has {shape}")
            yield name, tensor

    def _outer(self, group: UnitGroup) -> tuple[int, ...]:
        return tuple(self.groups[parent].size for parent in group.parents)


def _is_order(table: torch.Tensor) -> bool:
    return not table.is_floating_point() and bool((table.sort(-1).values == torch.arange(table.shape[-1])).all())


def as_real(values: torch.Tensor) -> torch.Tensor:
    """Values (*shape) as float32 or float64; of complex ones the real and imaginary parts (*shape, 2).

    The inner product of such parts is the real part of the complex one, Re <a, conj b>.
    """
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _summed(values: torch.Tensor, keep: list[int]) -> torch.Tensor:
    """Sum over all dimensions except `keep`, which the result has in this order."""
    rest = [dim for dim in range(values.ndim) if dim not in keep]
    return values.permute(*keep, *rest).flatten(len(keep)).sum(-1) if rest else values.permute(*keep)


def rearranged(
    values: torch.Tensor, dims: tuple[str | None, ...], groups: Mapping[str, UnitGroup], permutation: Permutation
) -> torch.Tensor:
    """Return a tensor (*units of each dimension's group) with units in the permutation's order, of the same shape.

    A row-stochastic matrix (units, units) in place of a permutation mixes units: new unit i is the mean of the old
    ones weighted by row i.
    """
    ordered = [(groups[name], dim) for dim, name in enumerate(dims) if name is not None and name in permutation]
    # Outermost groups first, as a table is indexed by the new indices of its parents.
    for group, dim in sorted(ordered, key=lambda each: len(each[0].parents)):
        table = permutation[group.name]
        if group.parents:
            values = _gathered(values, dims, dim, group.parents, table)
        elif table.is_floating_point():
            values = torch.tensordot(values, table.to(values.dtype), ([dim], [1])).movedim(-1, dim)
        else:
            values = values.index_select(dim, table)
    return values


def _gathered(
    values: torch.Tensor, dims: tuple[str | None, ...], dim: int, parents: tuple[str, ...], table: torch.Tensor
) -> torch.Tensor:
    """Reorder one dimension by a table that depends on the new indices of the parents' dimensions."""
    places = [*(dims.index(parent) for parent in parents), dim]
    shape = [size if place in places else 1 for place, size in enumerate(values.shape)]
    order = sorted(range(len(places)), key=lambda i: places[i])
    index = table.permute(order).reshape(shape).expand(values.shape)
    return values.gather(dim, index)
