"""Rules of elementwise operations and of constants."""

from __future__ import annotations

from typing import Any

from tasks.matching.tracing.axes import Axes, broadcast, cut, length, new_axes, new_axis, pin_all, unify
from tasks.matching.tracing.rules.registry import Site, rule, tensors

UNARY = """
abs alias alpha_dropout bernoulli bool _conj conj contiguous detach dropout dropout1d dropout2d dropout3d
feature_alpha_dropout feature_dropout fix float gelu half hardswish imag lift lift_fresh lift_fresh_copy
log_sigmoid mish mul_scalar native_dropout negative real relu6 requires_grad rrelu special_erf special_erfc
special_expit special_expm1 special_log1p tanhshrink threshold to _to_copy type_as view_as_real_copy
"""
"""Elementwise operations on their first tensor that torch does not tag as pointwise."""

ELEMENTWISE = """
__and__ copy copysign divide eq equal_elements floor_divide ge greater greater_equal gt heaviside le less
less_equal lt masked_fill multiply ne not_equal __or__ rsub subtract true_divide where xlogy
"""
"""Elementwise operations on several tensors that torch does not tag as pointwise."""

UNIFORM = """
empty empty_like empty_permuted fill fill_ full full_like new_empty new_full new_ones new_zeros ones
ones_like scalar_tensor zero zeros zeros_like
"""
"""Operations that make tensors of equal elements, whose order means nothing."""


@rule(UNARY)
def _unary(site: Site, **arguments: Any) -> Axes:
    return tensors(arguments)[0]


@rule(ELEMENTWISE)
def elementwise(site: Site, **arguments: Any) -> Axes:
    """The rule of elementwise operations, also of all that torch tags as pointwise."""
    return broadcast(*tensors(arguments))


@rule(UNIFORM)
def _uniform(site: Site, **_: Any) -> Axes:
    return new_axes(site.shape)


@rule("arange", "linspace", "eye", "rand", "randn", "rand_like", "randn_like")
def _numbered(site: Site, **_: Any) -> Axes:
    return new_axes(site.shape, f"{site.name} numbers it")


@rule("one_hot")
def _one_hot(site: Site, self: Axes, **_: Any) -> Axes:
    return [*self, new_axis(site.shape[-1], "one_hot numbers it")]


@rule("tril", "triu")
def _triangle(site: Site, self: Axes, **_: Any) -> Axes:
    pin_all(self[-2:], f"{site.name} depends on the order")
    return self


@rule("prelu")
def _prelu(site: Site, self: Axes, weight: Axes) -> Axes:
    if site.shape[1:] and weight and len(self) > 1:
        broadcast([self[1]], weight)
    return self


@rule("polar", "complex")
def _pair(site: Site, **arguments: Axes) -> Axes:
    paired = broadcast(*tensors(arguments))
    pin_all(paired, site.name)
    return paired


@rule("glu")
def _glu(site: Site, self: Axes, dim: int = -1) -> Axes:
    values, gates = cut(self[dim], [length(self[dim]) // 2] * 2)
    unify(values, gates)
    gated = list(self)
    gated[dim] = values
    return gated
