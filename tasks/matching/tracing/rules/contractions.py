"""Products of tensors that sum over a shared axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.matching.tracing.axes import (
    Atom,
    Axes,
    Axis,
    as_factors,
    broadcast,
    factor,
    length,
    new_axes,
    new_axis,
    pin,
    pin_all,
    unify,
)
from tasks.matching.tracing.rules.registry import Site, Unknown, rule


@rule("linear")
def _linear(site: Site, input: Axes, weight: Axes, bias: Axes | None = None) -> Axes:
    unify(input[-1], weight[-1])
    site.contract([input[-1]], [], input[:-1], weight[:-1])
    if len(weight) == 1:
        return input[:-1]
    if bias is not None:
        unify(weight[0], bias[0])
    return [*input[:-1], weight[0]]


@rule("addmm", "addbmm", "baddbmm", "addmv")
def _add_product(site: Site, self: Axes, **factors: Any) -> Axes:
    left, right = (value for value in factors.values() if isinstance(value, list))
    return broadcast(self, _matmul(site, left, right))


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot")
def _product(site: Site, self: Axes, **other: Axes) -> Axes:
    return _matmul(site, self, next(iter(other.values())))


def _matmul(site: Site, left: Axes, right: Axes) -> Axes:
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else []
    unify(left[-1], right[-2 if len(right) > 1 else -1])
    batch = _batch(left[:-2], right[:-2])
    _contract(site, left[-1], left[:-2], rows, right[:-2], columns)
    return [*batch, *rows, *columns]


@rule("_grouped_mm")
def _grouped_mm(site: Site, self: Axes, mat2: Axes, offs: Axes | None = None, **_: Any) -> Axes:
    if offs is None:
        raise Unknown
    return _grouped(site, self, mat2, offs)


@rule("transformers::grouped_mm_fallback")
def _grouped_mm_of_transformers(site: Site, input: Axes, weight: Axes, offs: Axes) -> Axes:
    return _grouped(site, input, weight, offs)


def _grouped(site: Site, rows: Axes, matrices: Axes, ends: Axes) -> Axes:
    """Rows (rows, in) times matrices (runs, in, out), each for the rows up to its end: numbers of rows."""
    if len(rows) != 2 or len(matrices) != 3:
        raise Unknown
    pin_all([rows[0], matrices[0], *ends], "runs of rows are told apart")
    unify(rows[1], matrices[1])
    site.contract([rows[1]], [], matrices[2:])
    return [rows[0], matrices[2]]


def _batch(left: Axes, right: Axes) -> Axes:
    return broadcast(left, right) if left or right else []


def _contract(site: Site, axis: Axis, batch: Axes, rows: Axes, other: Axes, columns: Axes) -> None:
    """A sum in a product of two stacks of matrices; a batch axis that one of them lacks is one more row axis."""
    pairs = list(zip(batch[::-1], other[::-1], strict=False))
    shared = [i for i, (mine, its) in enumerate(pairs, 1) if length(mine) != 1 and length(its) != 1]
    left, right = ([part for i, part in enumerate(parts[::-1], 1) if i not in shared] for parts in (batch, other))
    site.contract([axis], [batch[-i] for i in shared], [*left, *rows], [*right, *columns])


@rule("outer", "ger")
def _outer(site: Site, self: Axes, vec2: Axes) -> Axes:
    return [*self, *vec2]


@rule("inner")
def _inner(site: Site, self: Axes, other: Axes) -> Axes:
    unify(self[-1], other[-1])
    site.contract([self[-1]], [], self[:-1], other[:-1])
    return [*self[:-1], *other[:-1]]


@rule("einsum")
def _einsum(site: Site, equation: str, tensors: Sequence[Axes], **_: Any) -> Axes:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or any(len(set(term)) != len(term) for term in terms):
        raise Unknown
    lettered: dict[str, Axis] = {}
    for term, axes in zip(terms, tensors, strict=True):
        for letter, axis in zip(term, axes, strict=True):
            unify(lettered.setdefault(letter, axis), axis)
    site.summed = any(letter not in right for letter in lettered)
    for letter, axis in lettered.items():
        # What is summed over may depend on what all of its terms have, other units on what the result has too.
        beside = set(lettered).intersection(*(term for term in terms if letter in term)) - {letter}
        around = [lettered[one] for one in lettered if one in beside and (letter not in right or one in right)]
        site.dependences.append(([axis], around))
    return [lettered[letter] for letter in right]


@rule("scaled_dot_product_attention")
def _attention(
    site: Site,
    query: Axes,
    key: Axes,
    value: Axes,
    attn_mask: Axes | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
    **_: Any,
) -> Axes:
    if enable_gqa and length(query[-3]) != length(key[-3]):
        key, value = ([*part[:-3], _repeated(query, part), *part[-2:]] for part in (key, value))
    unify(query[-1], key[-1])
    unify(key[-2], value[-2])
    weights = _batch(query[:-2], key[:-2])
    batch = _batch(weights, value[:-2])
    _contract(site, query[-1], query[:-2], query[-2:-1], key[:-2], key[-2:-1])
    _contract(site, key[-2], weights, query[-2:-1], value[:-2], value[-1:])
    if attn_mask is not None:
        broadcast(attn_mask, [*batch, query[-2], key[-2]])
    if is_causal:
        pin(query[-2], "causal mask")
        pin(key[-2], "causal mask")
    return [*batch, query[-2], value[-1]]


def _repeated(query: Axes, part: Axes) -> Axis:
    """The head axis of keys or values as the queries see it: each head serves several."""
    return [[*as_factors(part[-3]), Atom(length(query[-3]) // length(part[-3]))]]


@rule("conv1d", "conv2d", "conv3d")
def _convolution(
    site: Site, input: Axes, weight: Axes, bias: Axes | None = None, groups: int = 1, **_: Any
) -> Axes:
    return _convolved(site, input, weight, bias, groups, turned=False)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(
    site: Site, input: Axes, weight: Axes, bias: Axes | None = None, groups: int = 1, **_: Any
) -> Axes:
    return _convolved(site, input, weight, bias, groups, turned=True)


@rule("convolution", "_convolution")
def _any_convolution(
    site: Site, input: Axes, weight: Axes, bias: Axes | None, transposed: bool, groups: int, **_: Any
) -> Axes:
    return _convolved(site, input, weight, bias, groups, turned=transposed)


def _convolved(site: Site, axes: Axes, weight: Axes, bias: Axes | None, groups: int, turned: bool) -> Axes:
    """Weights are (out, in / groups, …), of a transposed convolution (in, out / groups, …)."""
    spatial = len(weight) - 2
    images, channels = axes[: -spatial - 1], axes[-spatial - 1]
    mine, theirs = (weight[1], weight[0]) if turned else (weight[0], weight[1])
    group, inner = factor(channels, groups, length(channels) // groups)
    if turned:
        unify(theirs, channels)
        outer = mine
    else:
        unify(theirs, inner)
        outer = _factor_after(mine, group)
    features = [[*as_factors(group), *as_factors(outer)]]
    site.contract([inner], [group], images, [outer])
    pin_all([*axes[-spatial:], *weight[2:]], "spatial")
    if bias is not None:
        unify(bias[0], features)
    return [*images, features, *new_axes(site.shape[-spatial:], "spatial")]


def _factor_after(axis: Axis, leading: Axis) -> Axis:
    """What is left of an axis that is a product with another one's units at the front."""
    rest = new_axis(length(axis) // length(leading))
    unify(axis, [[*as_factors(leading), *as_factors(rest)]])
    return rest


@rule("bilinear")
def _bilinear(site: Site, input1: Axes, input2: Axes, weight: Axes, bias: Axes | None = None) -> Axes:
    for axis, factors in ((weight[1], input1), (weight[2], input2)):
        unify(axis, factors[-1])
        site.contract([axis], [], factors[:-1], weight[:1])
    if bias is not None:
        unify(weight[0], bias[0])
    return [*broadcast(input1[:-1], input2[:-1]), weight[0]]
