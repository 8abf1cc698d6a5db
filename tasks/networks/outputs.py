"""What a network gives: a tensor, or several in tuples, dicts and objects, and how those of batches become one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError
from roundweave.tasks.data.examples import Tensors


def call(network: nn.Module, inputs: Tensors, **more: Any) -> Any:
    """What a network gives for inputs (example, *), or for several by name, which are its keyword arguments."""
    return network(**inputs, **more) if isinstance(inputs, Mapping) else network(inputs, **more)


def output_of(given: Any) -> torch.Tensor:
    """Return the tensor of outputs in what a network gives: the tensor itself, or its logits.

    Raises `ModelError`.
    """
    output = tensor_in(given)
    if output is None:
        raise ModelError(
            f"the network gives a {type(given).__name__} without logits; wrap it in a module whose forward "
            "returns a tensor, or give a loss and scores of your own, which are called with what it gives"
        )
    return output


def tensor_in(given: Any) -> torch.Tensor | None:
    """Return the tensor in what a network gives, as `output_of` has it; None without one."""
    output = given if isinstance(given, torch.Tensor) else member(given, "logits")
    return output if isinstance(output, torch.Tensor) else None


def with_output(given: Any, output: torch.Tensor) -> Any:
    """Return what a network gives, a tensor or an object with logits, with another output in its place."""
    if isinstance(given, torch.Tensor):
        return output
    parts = given if isinstance(given, Mapping) else vars(given)
    return type(given)(**{**parts, "logits": output})


def member(given: Any, name: str) -> Any:
    """Return the part of a network's outputs that has this name, such as ``logits``; None if there is none."""
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def each_tensor(function: Callable[..., Any], given: Any, *others: Any, inner: bool = False) -> Any:
    """What a network gives, with a function's value in place of each tensor, of the same tensors of `others` too.

    It may be a tensor, or have tensors in tuples, lists, dicts, or as members of an object. Numbers and texts
    stay, and what is anything else, such as a cache, is None.
    """
    if isinstance(given, torch.Tensor):
        return function(given, *others)
    if isinstance(given, tuple | list):
        each = [each_tensor(function, *parts, inner=True) for parts in zip(given, *others, strict=True)]
        return given._make(each) if hasattr(given, "_make") else type(given)(each)
    if given is None or isinstance(given, int | float | str):
        return given
    if not isinstance(given, Mapping) and (inner or not hasattr(given, "__dict__")):
        return None
    made, members = copy.copy(given), (lambda one: one) if isinstance(given, Mapping) else vars
    for name in members(given):
        members(made)[name] = each_tensor(function, *(members(one)[name] for one in (given, *others)), inner=True)
    return made


def tensors_in(given: Any) -> list[torch.Tensor]:
    """Return all tensors that `each_tensor` finds."""
    found: list[torch.Tensor] = []
    each_tensor(found.append, given)
    return found


def joined(batches: Sequence[Any]) -> Any:
    """Return what a network gives for batches as it would give it for all, with tensors (example, *).

    Raises `ModelError` if examples have tensors of other shapes.
    """

    def cat(*tensors: torch.Tensor) -> torch.Tensor:
        if len({tensor.shape[1:] for tensor in tensors}) > 1:
            raise ModelError(
                "a score is one number of all outputs, and batches have outputs or targets of other lengths; give "
                "a number for each example, or pad all examples to one length"
            )
        return torch.cat(tensors)

    return each_tensor(cat, *batches)
