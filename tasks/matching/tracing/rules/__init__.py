"""Rules that say what each operation does to the axes of its tensors; importing the modules registers them."""

from __future__ import annotations

import torch

from roundweave.tasks.matching.tracing.rules import routing, shapes, sums
from roundweave.tasks.matching.tracing.rules.registry import RULES, Rule
from roundweave.tasks.matching.unofficial import OpOverload, operation_name

__all__ = ["routing", "rule_of", "shapes", "sums"]


def rule_of(operation: OpOverload) -> Rule | None:
    """The rule of an operation; None if there is none."""
    name = operation_name(operation).removeprefix("aten::")
    pointwise = shapes.elementwise if torch.Tag.pointwise in operation.tags else None
    return RULES.get(name) or RULES.get(name.removesuffix("_")) or pointwise
