"""Checks that permuting the discovered units does not change a network's function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError, UnitsUnsound, failing_as, one_line
from roundweave.tasks.matching.groups import Permutation, UnitGroups, as_real
from roundweave.tasks.matching.tracing.exporting import (
    Inputs,
    as_call,
    changed_inputs,
    evaluating,
    plain_attention,
)
from roundweave.tasks.matching.unofficial import (
    GROUPED_PRODUCT,
    Deferred,
    TorchDispatchMode,
    operation_name,
    tensors_in,
)

TOLERANCE = 1e-10
"""The largest relative difference of outputs in float64 that counts as rounding."""
LEAST_SPREAD = 1e-2
"""Differences are relative to the outputs' spread, or to this share of their largest size if that is more."""


def function_error(model: nn.Module, inputs: Inputs, units: UnitGroups, seed: int = 0) -> float:
    """The largest change of an output by a random permutation of units, over the outputs' spread, in float64.

    `inputs` are tensors (examples, …). All parameters are drawn at random, as a head of zeros would hide changes;
    the module's own are not read. Raises `ModelError` if the module cannot run in float64.
    """
    order = units.random(torch.Generator().manual_seed(seed))
    # A fresh copy of the network: the first one may have cached values that it computed from its parameters.
    return largest_change(_drawn(model, seed, units, {}), _drawn(model, seed, units, order), inputs)


def largest_change(network: nn.Module, other: nn.Module, inputs: Inputs) -> float:
    """Return the largest difference of an output of two networks in float64, over the outputs' spread."""
    pairs = zip(_outputs(network, inputs), _outputs(other, inputs), strict=True)
    return max((_difference(a, b) for a, b in pairs), default=0.0)


def _drawn(model: nn.Module, seed: int, units: UnitGroups, order: Permutation) -> nn.Module:
    """Return a copy of the module in float64 with random parameters, its units in this order.

    A parameter is drawn again each time that an operation reads it, as all of them may not fit into memory.
    """
    seeds = torch.Generator().manual_seed(seed)

    def copied(name: str, tensor: torch.Tensor, random: bool) -> torch.Tensor:
        """Return the module's own values, or random ones; these are drawn in single precision to save memory."""
        dtype = _widest(tensor.dtype)
        own = int(torch.randint(1 << 62, (), generator=seeds))

        def drawn() -> torch.Tensor:
            seeded = torch.Generator().manual_seed(own)
            return _random(tensor, seeded, torch.float32) if random else tensor.clone()

        def values() -> torch.Tensor:  # what was drawn is let go before the result is made, of twice its size
            return units.permuted(name, {name: drawn()}, order).to(dtype)

        if not isinstance(tensor, nn.Parameter):
            return values()
        return nn.Parameter(Deferred(tensor.shape, dtype, [values]), requires_grad=tensor.requires_grad)

    copies = {id(tensor): copied(name, tensor, random) for name, tensor, random in _tensors(model)}
    return evaluating(model, copies)


def check_function(model: nn.Module, inputs: Inputs, units: UnitGroups) -> float:
    """Return the `function_error` on inputs (examples, …). Raises `UnitsUnsound` if it is above 1e-10."""
    error = function_error(model, inputs, units)
    if not error <= TOLERANCE:
        raise UnitsUnsound(
            f"permuting the units of {type(model).__name__} changes its outputs by {error:.2g} (relative, "
            f"float64), more than {TOLERANCE:g}: it is not merged; an operation with a wrong rule, or one that "
            "draws random numbers, is the likely cause"
        )
    return error


def _widest(dtype: torch.dtype) -> torch.dtype:
    """Return the type of this kind in which rounding hides nothing."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


class _AllDouble(TorchDispatchMode):
    """Turns casts to other float types inside a network into float64, as rounding would hide small faults."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        dtype = given.get("dtype")
        if isinstance(dtype, torch.dtype):
            given["dtype"] = _widest(dtype)
        if operation_name(func) == GROUPED_PRODUCT and args[0].ndim == 2 and args[1].ndim == 3:
            return _grouped_product(*args, **given)
        return func(*args, **given)


@contextmanager
def _double_by_default() -> Iterator[None]:
    """A context in which tensors that a network makes of plain numbers hold the largest float64."""
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        yield


def _grouped_product(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, *_: Any) -> torch.Tensor:
    """Multiply runs of rows (rows, in) by one matrix each, (runs, in, out); torch has no float64 version.

    `ends` (runs,) has the row at which each run ends.
    """
    product = rows.new_zeros(len(rows), matrices.shape[-1])
    for matrix, begin, end in zip(matrices, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        product[begin:end] = rows[begin:end] @ matrix
    return product


def _outputs(network: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    given, named = as_call(changed_inputs(inputs, lambda x: x.to(_widest(x.dtype))))
    what = f"{type(network).__name__} cannot be checked in float64"
    failing = failing_as(lambda error: ModelError(f"{what}: {one_line(error)}"))
    with failing, torch.no_grad(), plain_attention(), _AllDouble(), _double_by_default():
        # `clone`, since a network may return one of its own tensors.
        return [as_real(leaf).double().clone() for leaf in tensors_in(network(*given, **named))]


def _difference(before: torch.Tensor, after: torch.Tensor) -> float:
    if not before.numel():
        return 0.0
    finite = before[before.isfinite()]
    same = (before == after) | (before.isnan() & after.isnan())
    if not finite.numel() or not (same | (before - after).isfinite()).all():
        return math.inf
    # The spread of a single number, or of nearly equal ones, is about 0 and of no use.
    scale = max((finite - finite.mean()).abs().max().item(), LEAST_SPREAD * finite.abs().max().item())
    difference = torch.where(same, 0.0, before - after).abs().max().item()
    return difference / scale if scale > 0 else math.inf if difference > 0 else 0.0


def randomise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw a network's parameters at random at the usual scale, and its buffers so that units differ in them."""
    with torch.no_grad():
        for _, tensor, random in _tensors(network):
            if random:
                tensor.copy_(_random(tensor, generator, torch.float64))


def _tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """The names and tensors of a network's parameters and buffers, and whether the check draws them at random."""
    persistent = network.state_dict()
    for name, parameter in network.named_parameters():
        yield name, parameter, True
    for name, buffer in network.named_buffers():
        yield name, buffer, name in persistent and (buffer.is_floating_point() or buffer.is_complex())


def _random(tensor: torch.Tensor, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Random values (*shape) of the usual scale for a parameter or a buffer, complex if it is."""
    dtype = dtype.to_complex() if tensor.is_complex() else dtype
    if not isinstance(tensor, nn.Parameter):
        return torch.rand(tensor.shape, generator=generator, dtype=dtype).add_(0.5)
    values = torch.randn(tensor.shape, generator=generator, dtype=dtype)
    return values.div_(math.sqrt(math.prod(tensor.shape[1:]))) if tensor.ndim > 1 else values.mul_(0.25).add_(0.75)
