"""Rules of operations that sum or compare over axes: products, reductions, normalisation, pooling, recurrence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import digits
from typing import Any

from roundweave.tasks.matching.tracing.axes import (
    Atom,
    Axes,
    broadcast,
    concatenation,
    new_axes,
    pin_all,
    product,
    unify,
)
from roundweave.tasks.matching.tracing.rules.registry import Result, Site, Unknown, dimensions, rule, tensors
from roundweave.tasks.matching.tracing.rules.shapes import cat, stack


def summed_product(site: Site, equation: str, *factors: Axes) -> Axes:
    """Return the axes of a product by an equation of `torch.einsum` with an arrow.

    Axes of length 1 are broadcast.
    """
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow or any(len(set(term) - {"."}) != len(term.replace("...", "")) for term in terms):
        raise Unknown
    # The axes of an ellipsis are numbered from the right.
    numbers = [digits[: len(f) - len(t.replace("...", ""))][::-1] for t, f in zip(terms, factors, strict=True)]
    terms = [term.replace("...", number) for term, number in zip(terms, numbers, strict=True)]
    result = result.replace("...", max(numbers, key=len))
    lettered: dict[str, Atom] = {}
    having: dict[str, set[str]] = {}
    for term, axes in zip(terms, factors, strict=True):
        long = {letter for letter, axis in zip(term, axes, strict=True) if axis.size != 1}
        for letter, axis in zip(term, axes, strict=True):
            if letter in long:
                having[letter] = having.get(letter, long) & long
                unify(lettered.setdefault(letter, axis), axis)
    site.summed = any(letter not in result for letter in "".join(terms))
    for letter, axis in lettered.items():
        # A summed unit may depend on units that all of its terms have, another unit on those in the result, too.
        others = having[letter] - {letter} - (set(lettered) - set(result) if letter in result else set())
        site.dependences.append(([axis], [lettered[one] for one in lettered if one in others]))
    return [lettered.get(letter, Atom(1)) for letter in result]


@rule("einsum")
def _einsum(site: Site, equation: str, tensors: Sequence[Axes], **_: Any) -> Axes:
    return summed_product(site, equation.replace(" ", ""), *tensors)


@rule("linear")
def _linear(site: Site, input: Axes, weight: Axes, bias: Axes | None = None) -> Axes:
    equation = "...i,oi->...o" if len(weight) > 1 else "...i,i->..."
    return broadcast(summed_product(site, equation, input, weight), *([] if bias is None else [bias]))


@rule("matmul mm bmm mv dot addmm baddbmm addmv")
def _matmul(site: Site, **arguments: Any) -> Axes:
    *added, left, right = tensors(arguments)
    row, column = "r" * (len(left) > 1), "c" * (len(right) > 1)
    terms = ["..." * (len(left) > 2) + row + "i", "..." * (len(right) > 2) + "i" + column]
    result = f"{'...' * ('.' in terms[0] + terms[1])}{row}{column}"
    return broadcast(*added, summed_product(site, f"{','.join(terms)}->{result}", left, right))


@rule("scaled_dot_product_attention")
def _attention(site: Site, query: Axes, key: Axes, value: Axes, **more: Any) -> Axes:
    if more["enable_gqa"] and query[-3].size != key[-3].size:
        # Each head of keys and values is shared by several heads of queries.
        several = Atom(query[-3].size // key[-3].size)
        key, value = ([*part[:-3], product(part[-3], several), *part[-2:]] for part in (key, value))
    weights = summed_product(site, "...qd,...kd->...qk", query, key)
    if more["attn_mask"] is not None:
        broadcast(more["attn_mask"], weights)
    if more["is_causal"]:
        pin_all(weights[-2:], "causal mask")
    return summed_product(site, "...qk,...kv->...qv", weights, value)


@rule("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution")
def _convolution(
    site: Site, input: Axes, weight: Axes, bias: Axes | None = None, groups: int = 1, **more: Any
) -> Axes:
    """Weights are (out, in / groups, …), and (in, out / groups, …) in a transposed convolution.

    Places along an axis are not mixed if the kernel has the length 1 there, and none are added or passed over.
    """
    spatial = len(weight) - 2
    images, channels = input[: -spatial - 1], input[-spatial - 1]
    group, inner = channels.factored(groups, channels.size // groups)
    if more.get("transposed", "transpose" in site.name):
        unify(weight[0], channels)
        outer = weight[1]
    else:
        unify(weight[1], inner)
        outer = Atom(weight[0].size // groups)
        unify(weight[0], product(group, outer))
    features = product(group, outer)
    padding = more.get("padding", 0)
    padded = any(padding) if isinstance(padding, tuple) else padding not in (0, "valid")
    places = list(zip(input[-spatial:], weight[2:], new_axes(site.shape[-spatial:], "spatial"), strict=True))
    kept = [axis for axis, kernel, new in places if kernel.size == 1 and axis.size == new.size and not padded]
    pin_all([axis for axis, _, _ in places if axis not in kept] + weight[2:], "spatial")
    site.contract([inner], [group], [*images, *kept], [outer])
    if bias is not None:
        unify(bias[0], features)
    return [*images, features, *(axis if axis in kept else new for axis, _, new in places)]


# Reductions


def reduced(site: Site, axes: Axes, dims: Sequence[int]) -> Axes:
    """The axes after a reduction over some dimensions, which stay with length 1 if the output has as many."""
    site.contract([axes[d] for d in dims], [axis for d, axis in enumerate(axes) if d not in dims])
    keep = len(site.shape) == len(axes)
    return [Atom(1) if d in dims else axis for d, axis in enumerate(axes) if keep or d not in dims]


@rule("all amax amin any logsumexp mean norm linalg_vector_norm nansum nanmean prod std std_mean sum var var_mean")
def _reduction(site: Site, self: Axes, dim: Any = None, **_: Any) -> Axes:
    return reduced(site, self, dimensions(dim, len(self)))


@rule("max min median mode kthvalue argmax argmin")
def _extreme(site: Site, self: Axes, dim: int | None = None, **more: Any) -> Axes:
    if "other" in more:
        return broadcast(self, more["other"])
    dims = dimensions(dim, len(self))
    if site.name.startswith("arg") or 1 in site.used:
        pin_all([self[d] for d in dims], f"{site.name} gives its indices")
    return reduced(site, self, dims)


@rule("softmax log_softmax _softmax _log_softmax")
def _softmax(site: Site, self: Axes, dim: int, **_: Any) -> Axes:
    reduced(site, self, dimensions(dim, len(self)))
    return self


@rule("cumprod cummax cummin logcumsumexp diff argsort flip roll")
def ordered(site: Site, self: Axes, **more: Any) -> Axes:
    """Operations that depend on the order along some dimensions; the others may be permuted."""
    dims = dimensions(more.get("dims", more.get("dim", -1)), len(self))
    beside = [more[name] for name in ("prepend", "append") if more.get(name)]
    site.mix(cat([self, *beside], dims[0]), dims, f"{site.name} depends on the order")
    return [Atom(site.shape[d], site.name) if d in dims else axis for d, axis in enumerate(self)]


# Normalisation and pooling


def _scale(axes: Axes, arguments: Mapping[str, Any]) -> None:
    """Unify the axes with those of scales, shifts and statistics, which have one number for each unit."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        if arguments.get(name) is not None:
            broadcast(axes, arguments[name])


@rule("batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training")
def _batch_norm(site: Site, input: Axes, **more: Any) -> Result:
    _scale([input[1]], more)
    if more.get("running_mean") is None:
        site.contract([input[0], *input[2:]], [input[1]])
    return input, *([input[1]] if shape[0] else None for shape in site.shapes[1:])


@rule("group_norm instance_norm")
def _group_norm(site: Site, input: Axes, num_groups: int | None = None, **more: Any) -> Axes:
    count = num_groups or input[1].size
    group, inner = input[1].factored(count, input[1].size // count)
    site.contract([inner, *input[2:]], [input[0], group])
    _scale([input[1]], more)
    return input


@rule("layer_norm native_layer_norm rms_norm _fused_rms_norm")
def _layer_norm(site: Site, input: Axes, normalized_shape: list[int], **more: Any) -> Result:
    batch, axes = input[: -len(normalized_shape)], input[-len(normalized_shape) :]
    site.contract(axes, batch)
    _scale(axes, more)
    return input, *([*batch, *new_axes([1] * len(axes))] for _ in site.shapes[1:])


@rule("avg_pool2d avg_pool3d max_pool2d max_pool2d_with_indices adaptive_avg_pool2d _adaptive_avg_pool2d")
@rule("_adaptive_avg_pool3d upsample_nearest2d upsample_bilinear2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa")
def _pooled(site: Site, **arguments: Any) -> Axes:
    axes = tensors(arguments)[0]
    spatial = next(int(c) for c in reversed(site.name) if c.isdigit())
    images = site.mix(axes, range(len(axes) - spatial, len(axes)), "spatial")
    return [*images, *new_axes(site.shape[-spatial:], "spatial")]


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*GATES)
def _recurrent(site: Site, input: Axes, hx: Any, params: Sequence[Axes], num_layers: int, **more: Any) -> Result:
    """Weights are (gates x hidden, in) and (gates x hidden, hidden).

    The latter has the hidden units on both axes.
    """
    batch, time = input[:2] if more["batch_first"] else input[1::-1]
    time.pin("time")
    site.contract([time, input[-1]], [], [batch])
    directions = 2 if more["bidirectional"] else 1
    each = len(params) // (num_layers * directions)
    current, states = input[-1], []
    for layer in range(num_layers):
        first = layer * directions
        own = [params[i * each : (i + 1) * each] for i in range(first, first + directions)]
        states += [_cell(GATES[site.name], current, one) for one in own]
        current = concatenation(*states[first:])
    for begin in hx if isinstance(hx, tuple) else (hx,):
        _begin(begin, batch, states)
    return [*input[:-1], current], *(_final(states, batch) for _ in site.shapes[1:])


def _cell(gates: int, inputs: Atom, params: Sequence[Axes]) -> Atom:
    """Return the units of a layer, of its state as of its cell."""
    if len(params) in (3, 5):
        raise Unknown  # a last matrix projects the state, which then has other units than the cell
    unify(params[0][1], inputs)
    units = params[1][1]
    for tensor in params:
        unify(tensor[0], product(Atom(gates, "gates"), units))
    return units


def _final(units: Sequence[Atom], batch: Atom) -> Axes:
    """Return the axes (layer x direction, example, unit) of final states; each layer has its own units."""
    layers, own = stack([[each] for each in units])
    return [layers, batch, own]


def _begin(begin: Axes, batch: Atom, units: Sequence[Atom]) -> None:
    """Unify an initial state (layer x direction, example, unit) with the units of each layer."""
    layers, examples, hidden = begin
    unify(examples, batch)
    layers.pin("layers")
    for index, own in enumerate(units):
        unify(hidden if layers.whole is None else hidden.at(layers.whole, index), own)
