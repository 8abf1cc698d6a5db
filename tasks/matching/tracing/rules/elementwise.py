"""Rules of elementwise operations and of constants."""

from __future__ import annotations

from typing import Any

from roundweave.tasks.matching.tracing.axes import Axes, UnitNumbers, broadcast, new_axes
from roundweave.tasks.matching.tracing.rules.registry import Site, rule, tensors

ELEMENTWISE = """
alias alpha_dropout __and__ bernoulli complex _conj conj contiguous copy copysign detach divide dropout eq
feature_alpha_dropout feature_dropout fix floor_divide ge greater greater_equal gt hardswish imag le less
less_equal lift lift_fresh lift_fresh_copy log_sigmoid lt masked_fill multiply native_dropout ne negative
not_equal __or__ polar _prelu_kernel real rsub special_erf special_erfc special_expit special_expm1 special_log1p
subtract _to_copy true_divide where
"""
"""Elementwise operations that torch does not tag as pointwise."""

UNIFORM = """
empty empty_like empty_permuted fill full full_like new_empty new_full new_ones new_zeros ones ones_like
scalar_tensor zero zeros zeros_like
"""
"""Operations that make tensors of equal elements, whose order means nothing."""


@rule(ELEMENTWISE)
def elementwise(site: Site, **arguments: Any) -> Axes:
    """The rule of elementwise operations, also of all that torch tags as pointwise."""
    return broadcast(*tensors(arguments))


@rule("to type_as")
def _converted(site: Site, self: Axes, **_: Any) -> Axes:
    """The other tensor only gives the type, and may have any shape."""
    return self


@rule(UNIFORM)
def _uniform(site: Site, **_: Any) -> Axes:
    return new_axes(site.shape)


@rule("arange linspace eye rand randn rand_like randn_like")
def _numbered(site: Site, **more: Any) -> Axes:
    axes = new_axes(site.shape, f"{site.name} numbers it")
    plain = site.name == "arange" and not more.get("start") and more.get("step", 1) == 1
    return UnitNumbers(axes, "places", *axes) if plain else axes
