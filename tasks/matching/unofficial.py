"""What is used of torch and is not in its documentation: seen in torch 2.14.1, and all of it is here.

The test of this module says what is gone, where a later version has it no more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["GROUPED_PRODUCT", "NOISY", "OpOverload", "TorchDispatchMode"]

GROUPED_PRODUCT = "aten::_grouped_mm"
"""Products of runs of rows, each with a matrix of its own: the operation of mixtures of experts."""

NOISY = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch.export._trace")
"""Loggers of torch that tell at length of an error of an export which is raised, too."""


def tensors_in(values: object) -> list[torch.Tensor]:
    """The tensors, of any shapes, in tuples, lists and dicts, and in the outputs that libraries register."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def operation_name(operation: OpOverload) -> str:
    """What an operation is called, as ``aten::relu``, whichever of its overloads it is."""
    return str(operation._schema.name)


def writes(operation: OpOverload) -> bool:
    """Whether an operation writes into one of its arguments."""
    return bool(operation._schema.is_mutable)


def arguments(operation: OpOverload, *given: Any, **named: Any) -> dict[str, Any]:
    """An operation's arguments by name: those that are given, and the defaults of others."""
    schema = operation._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return defaults | dict(zip([argument.name for argument in schema], given, strict=False)) | named


def hooked(new: nn.Parameter, old: nn.Parameter) -> nn.Parameter:
    """A parameter with the hooks of another, too: torch copies a parameter without them."""
    for hook in (old._backward_hooks or {}).values():
        new.register_hook(hook)
    for hook in (old._post_accumulate_grad_hooks or {}).values():
        new.register_post_accumulate_grad_hook(hook)
    return new
