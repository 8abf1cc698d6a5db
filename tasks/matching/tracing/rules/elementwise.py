"""Operations on each element, and constants."""

from __future__ import annotations

from typing import Any

from tasks.matching.tracing.axes import Axes, broadcast, is_axes, new_axes, new_axis, pin_all, unify
from tasks.matching.tracing.rules.registry import Site, rule

UNARY = [
    "abs",
    "acos",
    "acosh",
    "alias",
    "alpha_dropout",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bernoulli",
    "bitwise_not",
    "bool",
    "ceil",
    "celu",
    "clamp_max",
    "clamp_min",
    "clone",
    "contiguous",
    "cos",
    "cosh",
    "deg2rad",
    "detach",
    "digamma",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "feature_alpha_dropout",
    "feature_dropout",
    "fix",
    "float",
    "floor",
    "frac",
    "gelu",
    "half",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "isfinite",
    "isinf",
    "isnan",
    "leaky_relu",
    "lgamma",
    "lift",
    "lift_fresh",
    "lift_fresh_copy",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_sigmoid",
    "logical_not",
    "logit",
    "mish",
    "mul_scalar",
    "nan_to_num",
    "native_dropout",
    "neg",
    "negative",
    "positive",
    "reciprocal",
    "relu",
    "relu6",
    "requires_grad",
    "round",
    "rrelu",
    "rsqrt",
    "selu",
    "sgn",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "softshrink",
    "special_erf",
    "special_erfc",
    "special_expit",
    "special_expm1",
    "special_log1p",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "tanhshrink",
    "threshold",
    "to",
    "trunc",
    "type_as",
    "_to_copy",
    "_conj",
    "conj",
    "imag",
    "real",
    "view_as_real_copy",
]

ELEMENTWISE = [
    "add",
    "addcdiv",
    "addcmul",
    "atan2",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "clamp",
    "copysign",
    "div",
    "divide",
    "eq",
    "equal_elements",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "ge",
    "greater",
    "greater_equal",
    "gt",
    "heaviside",
    "hypot",
    "le",
    "less",
    "less_equal",
    "lerp",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_or",
    "logical_xor",
    "lt",
    "maximum",
    "masked_fill",
    "minimum",
    "mul",
    "multiply",
    "ne",
    "nextafter",
    "not_equal",
    "pow",
    "remainder",
    "rsub",
    "special_xlog1py",
    "sub",
    "subtract",
    "true_divide",
    "where",
    "xlogy",
    "__and__",
    "__or__",
    "__xor__",
]

UNIFORM = [
    "empty",
    "empty_like",
    "empty_permuted",
    "fill",
    "fill_",
    "full",
    "full_like",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones",
    "ones_like",
    "scalar_tensor",
    "zero",
    "zeros",
    "zeros_like",
]
"""Every element is the same, so their order says nothing."""


@rule(*UNARY)
def _unary(site: Site, **arguments: Any) -> Axes | tuple[Axes, ...]:
    axes: Axes = next(value for value in arguments.values() if is_axes(value))
    return axes if len(site.shapes) == 1 else tuple(axes for _ in site.shapes)


@rule(*ELEMENTWISE)
def _elementwise(site: Site, **arguments: Any) -> Axes:
    return broadcast(*(value for value in arguments.values() if is_axes(value)))


@rule(*UNIFORM)
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


@rule("copy", "copy_")
def _copy(site: Site, self: Axes, src: Axes, **_: Any) -> Axes:
    for mine, other in zip(self[::-1], broadcast(self, src)[::-1], strict=False):
        unify(mine, other)
    return self


@rule("polar", "complex")
def _pair(site: Site, **arguments: Axes) -> Axes:
    paired = broadcast(*(value for value in arguments.values() if is_axes(value)))
    pin_all(paired, site.name)
    return paired
