"""The check that permuting the discovered units leaves a network's function alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from storage.errors import ModelError, UnitsUnsound, one_line
from tasks.matching.groups import Permutation, UnitGroups
from tasks.matching.tracing.exporting import evaluating, plain_attention
from tasks.matching.unofficial import GROUPED_PRODUCT, TorchDispatchMode, operation_name, tensors_in

TOLERANCE = 1e-10
"""Largest relative difference of outputs in float64 that rounding may make."""
LEAST_SPREAD = 1e-2
"""Outputs are compared with their spread, or with this share of their size where that is more."""


def function_error(model: nn.Module, inputs: tuple[torch.Tensor, ...], units: UnitGroups, seed: int = 0) -> float:
    """How much a random permutation changes the outputs: largest difference over an output's spread, in float64.

    `inputs` are tensors (examples, …), as the module takes them. All parameters are drawn at
    random first: with a head of zeros nothing would show. Raises `ModelError` where the module has no float64.
    """
    before = _outputs(_drawn(model, seed)[0], inputs)
    # Another network, which has not seen the inputs: one that has may keep what it computed of its parameters.
    network, generator = _drawn(model, seed)
    _permute(network, units, units.random(generator))
    after = _outputs(network, inputs)
    return max((_difference(a, b) for a, b in zip(before, after, strict=True)), default=0.0)


def _drawn(model: nn.Module, seed: int) -> tuple[nn.Module, torch.Generator]:
    """A copy of the module in float64 with parameters drawn at random, and the generator after that."""
    generator = torch.Generator().manual_seed(seed)
    network = evaluating(model).double()
    randomise(network, generator)
    return network, generator


def _permute(network: nn.Module, units: UnitGroups, order: Permutation) -> None:
    """Give the units of a network an order, tensor by tensor: a second copy of all may not fit in memory."""
    own = dict([*network.named_parameters(), *network.named_buffers()])
    with torch.no_grad():
        for name in units.tensors:
            own[name].copy_(units.permuted(name, own, order))


def check_function(model: nn.Module, inputs: tuple[torch.Tensor, ...], units: UnitGroups) -> float:
    """The function error on inputs (examples, …); raises `UnitsUnsound` where it is above 1e-10."""
    error = function_error(model, inputs, units)
    if not error <= TOLERANCE:
        raise UnitsUnsound(
            f"permuting the units of {type(model).__name__} changes its outputs by {error:.2g} (relative, "
            f"float64), more than {TOLERANCE:g}: it is not merged; an operation with a wrong rule, or one that "
            "draws random numbers, is the likely cause"
        )
    return error


class _AllDouble(TorchDispatchMode):
    """Some networks cast to float32 inside; here they get float64, or rounding would hide small faults."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        dtype = given.get("dtype")
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            given["dtype"] = torch.float64
        if operation_name(func) == GROUPED_PRODUCT and args[0].ndim == 2 and args[1].ndim == 3:
            return _grouped_product(*args, **given)
        return func(*args, **given)


def _grouped_product(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, *_: Any) -> torch.Tensor:
    """Rows (rows, in) times matrices (runs, in, out), one for the rows to each end: torch has no float64 of it."""
    product = rows.new_zeros(len(rows), matrices.shape[-1])
    for matrix, begin, end in zip(matrices, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        product[begin:end] = rows[begin:end] @ matrix
    return product


def _outputs(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    doubled = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    try:
        with torch.no_grad(), plain_attention(), _AllDouble():
            # `clone`, since a network may hand out one of its own tensors.
            return [leaf.double().clone() for leaf in tensors_in(network(*doubled))]
    except Exception as error:
        raise ModelError(f"{type(network).__name__} cannot be checked in float64: {one_line(error)}") from error


def _difference(before: torch.Tensor, after: torch.Tensor) -> float:
    if not before.numel():
        return 0.0
    finite = before[before.isfinite()]
    same = (before == after) | (before.isnan() & after.isnan())
    if not finite.numel() or not (same | (before - after).isfinite()).all():
        return math.inf
    # A single number, or many that are nearly the same, has no spread to speak of.
    scale = max((finite - finite.mean()).abs().max().item(), LEAST_SPREAD * finite.abs().max().item())
    difference = torch.where(same, 0.0, before - after).abs().max().item()
    return difference / scale if scale > 0 else math.inf if difference > 0 else 0.0


def randomise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw parameters of any shapes at the usual size, and statistics that no unit shares with another."""
    with torch.no_grad():
        for parameter in network.parameters():
            fan = math.prod(parameter.shape[1:])
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values / math.sqrt(fan) if parameter.ndim > 1 else 0.75 + 0.25 * values)
        persistent = network.state_dict()
        for name, buffer in network.named_buffers():
            if name in persistent and buffer.is_floating_point():
                values = torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
                buffer.copy_(values + 0.5)
