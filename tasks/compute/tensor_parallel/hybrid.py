"""Hybrid parallelism: ranks divide the batch before the shared layers, and units within them (Krizhevsky 2014)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from storage.errors import ModelError
from tasks.compute.tensor_parallel.shares import Shares


def joined(network: nn.Module, inputs: torch.Tensor, shares: Shares) -> Shares:
    """Add to shares that ranks divide the examples of a batch up to the first of the shared layers.

    `inputs` are (example, *). Raises `ModelError` if nothing is trained before that layer, or examples interact
    there, or if the layer cannot take the divided batch.
    """
    order: list[tuple[str, torch.Tensor | None]] = []

    def note(name: str) -> Any:
        return lambda _, given: order.append((name, given[0] if name in shares.column and given else None))

    handles = [module.register_forward_pre_hook(note(name)) for name, module in network.named_modules()]
    network.eval()(inputs)
    for handle in handles:
        handle.remove()
    starts = (number for number, (name, _) in enumerate(order) if name in {*shares.column, *shares.heads})
    first, features = order[at := next(starts)]
    if features is None:
        raise ModelError(f"{first} cannot join shares of a batch, as linear layers do; leave hybrid out")
    for name, _ in order[:at]:
        if isinstance(network.get_submodule(name), nn.modules.batchnorm._BatchNorm):
            raise ModelError(f"{name} normalises over the batch, of which ranks have shares; leave hybrid out")
    before = _reached(network, features)
    if not before:
        raise ModelError(f"nothing is trained before {first}, the first of the shared layers; leave hybrid out")
    return replace(shares, joins=first, before=before)


def _reached(network: nn.Module, features: torch.Tensor) -> frozenset[str]:
    """The names of the trained parameters from which features were computed."""
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if not features.requires_grad:
        return frozenset()
    gradients = torch.autograd.grad(features.sum(), list(named.values()), allow_unused=True)
    return frozenset(name for name, gradient in zip(named, gradients, strict=True) if gradient is not None)
