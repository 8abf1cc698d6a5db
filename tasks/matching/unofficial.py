"""Everything that matching uses of torch without its documentation; it works with torch 2.14.1.

This module's test fails, and names what is missing, if a later version of torch no longer has it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["GROUPED_PRODUCT", "NOISY", "OpOverload", "TorchDispatchMode", "tree_map_only"]

GROUPED_PRODUCT = "aten::_grouped_mm"
"""The operation of mixtures of experts, which multiplies runs of rows by one matrix each."""

NOISY = (
    *("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch.export._trace"),
    "torch.onnx._internal.exporter._registration",
)
"""Torch's loggers that print an error of an export at length, which is raised anyway, and of what is absent."""


def tensors_in(values: object) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts, and in output classes that libraries register with torch."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def operation_name(operation: OpOverload) -> str:
    """Return an operation's name without its overload, such as ``aten::relu``."""
    return str(operation._schema.name)


def writes(operation: OpOverload) -> bool:
    """Tell whether an operation writes into one of its arguments."""
    return bool(operation._schema.is_mutable)


def is_pointwise(operation: OpOverload) -> bool:
    """Tell whether torch tags an operation as such, or the one that does the same without writing."""
    plain = getattr(torch.ops.aten, operation_name(operation).removeprefix("aten::").removesuffix("_"), None)
    forms = operation, getattr(plain, operation._overloadname, operation)
    return any(torch.Tag.pointwise in form.tags for form in forms)


def is_view(operation: OpOverload) -> bool:
    """Tell whether an operation only shows a part of its argument, or shows it in another shape."""
    aliases = [result.alias_info for result in operation._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def arguments(operation: OpOverload, *given: Any, **named: Any) -> dict[str, Any]:
    """Return an operation's arguments by name, in its own order, with defaults for those that are not given."""
    schema = operation._schema.arguments
    known = dict(zip([argument.name for argument in schema], given, strict=False)) | named
    return {each.name: known.get(each.name, each.default_value) for each in schema}


def taken_apart(node: fx.Node) -> tuple[fx.Graph, list[Any]] | None:
    """Return the graph of the simpler operations that torch makes an operation of, and the operands that it takes.

    None if the operation writes into one of them, or torch knows no simpler ones.
    """
    operation: Any = node.target
    given = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    known: Any = {one: made for one, made in decomposition_table.items() if one is operation}
    fakes: list[Any] = tensors_in(given)
    if not fakes or writes(operation):
        return None
    with fakes[0].fake_mode, suppress(Exception):  # it may be of another library, and raise anything
        graph = make_fx(lambda args, kwargs: operation(*args, **kwargs), known)(*given).graph
        if not any(each.target is operation for each in graph.nodes):
            return graph, tree_leaves((node.args, node.kwargs))
    return None


Source = Callable[[], torch.Tensor]


class Deferred(torch.Tensor):
    """A tensor of this shape that takes no memory: its values are computed for each operation that reads them.

    `source` holds the function that computes them, in a list, which the tensor shares with those detached from it.
    """

    source: list[Source]

    @staticmethod
    def __new__(cls: type[Deferred], shape: torch.Size, dtype: torch.dtype, source: list[Source]) -> Deferred:
        """Make the tensor without memory, and without gradients."""
        made: Deferred = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        made.source = source
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run the operation on the values; those that it writes into are kept for the operations after it."""
        if func is torch.ops.aten.detach.default:
            return cls(args[0].shape, args[0].dtype, args[0].source)

        def read(tensor: Deferred) -> torch.Tensor:
            values = tensor.source[0]()
            if writes(func):
                tensor.source[0] = lambda: values
            return values

        args, kwargs = tree_map_only(cls, read, (args, kwargs or {}))
        return func(*args, **kwargs)
