"""What a network gives for inputs: a tensor, or an object with logits and a loss, as models of Hugging Face do."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError
from roundweave.tasks.data.examples import Tensors

OWN_LOSS = "model"
"""The name of the loss that the network itself computes, from the keyword argument `labels`."""


def call(network: nn.Module, inputs: Tensors, **more: Any) -> Any:
    """What a network gives for inputs (example, *), or for several by name, which are its keyword arguments."""
    return network(**inputs, **more) if isinstance(inputs, Mapping) else network(inputs, **more)


def takes_labels(network: nn.Module) -> bool:
    """Whether a network computes a loss of its own from `labels`, as models of Hugging Face do."""
    try:
        return "labels" in inspect.signature(network.forward).parameters
    except ValueError:  # a traced network has no signature
        return False


def loss_in(given: Any) -> torch.Tensor:
    """The loss in what a network gives for inputs and labels, (); raises `ModelError` without one."""
    loss = member(given, "loss")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ModelError("the network gives no loss for labels; name one with --loss")
    return loss.reshape(())


def output_of(given: Any) -> torch.Tensor:
    """The tensor of outputs in what a network gives: the tensor itself, or its logits; raises `ModelError`."""
    output = tensor_in(given)
    if output is None:
        raise ModelError(
            f"the network gives a {type(given).__name__} without logits; wrap it in a module whose forward "
            "returns a tensor, or give a loss and scores of your own, which are called with what it gives"
        )
    return output


def tensor_in(given: Any) -> torch.Tensor | None:
    """The tensor in what a network gives, as `output_of` has it; None without one."""
    output = given if isinstance(given, torch.Tensor) else member(given, "logits")
    return output if isinstance(output, torch.Tensor) else None


def with_output(given: Any, output: torch.Tensor) -> Any:
    """What a network gives, a tensor or an object with logits, with another output in its place."""
    if isinstance(given, torch.Tensor):
        return output
    parts = given if isinstance(given, Mapping) else vars(given)
    return type(given)(**{**parts, "logits": output})


def member(given: Any, name: str) -> Any:
    """The part of a network's outputs that has this name, such as ``logits``; None if there is none."""
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
