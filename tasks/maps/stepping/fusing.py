"""Descents along products of matrices in one operation: other bits, in less time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch

from tasks.maps.stepping.programs import Operation, Place, Program, Rate, leaves


def fused(program: Program) -> Program:
    """The program with ``p -= lr (a @ b)`` computed as ``addmm_(p, a, b, alpha=-lr)``.

    The product is then never written, and read again: of a layer's weights, that is most of what their descent
    costs. It is rounded once with its subtraction, so the bits are others. A product that is used elsewhere, or
    whose factors are changed by then, is left as it is.
    """
    made = {place: operation for operation in program.operations for place in operation.results}
    uses = Counter(place for operation in program.operations for place in operation.places)
    roots = _roots(program)
    changed = {roots.get(place, place) for operation in program.operations for place in _written(operation)}

    def rewritten(operation: Operation) -> Operation:
        if not _descends(operation):
            return operation
        parameter, gradient = operation.arguments
        product = made.get(gradient)
        if product is None or product.function is not torch.ops.aten.mm.default or uses[gradient] > 1:
            return operation
        if any(roots.get(factor, factor) in changed for factor in product.places):
            return operation
        return replace(
            operation, function=torch.ops.aten.addmm_.default, arguments=(parameter, *product.arguments)
        )

    return replace(program, operations=tuple(map(rewritten, program.operations))).needed


def _descends(operation: Operation) -> bool:
    return any(isinstance(value, Rate) for value in operation.keywords.values())


def _roots(program: Program) -> dict[Place, Place]:
    """Of which tensor each view shows the memory."""
    roots: dict[Place, Place] = {}
    for operation in program.operations:
        returns = operation.function._schema.returns
        if any(returned.alias_info is not None for returned in returns) and operation.places:
            shown = operation.places[0]
            roots |= {place: roots.get(shown, shown) for place in operation.results if place != shown}
    return roots


def _written(operation: Operation) -> Iterator[Place]:
    """The places of the tensors that an operation writes to."""
    schema = operation.function._schema.arguments
    given = dict(zip((argument.name for argument in schema), operation.arguments, strict=False))
    for argument in schema:
        if argument.alias_info is not None and argument.alias_info.is_write:
            values = leaves({**given, **operation.keywords}.get(argument.name))
            yield from (value for value in values if isinstance(value, Place))
