"""Tensors of networks by their names: read when they are asked for, and compared bit by bit."""

from __future__ import annotations

import torch

from roundweave.storage.values.lazy import LazyTensors
from roundweave.storage.values.tensors import specs_of

TENSORS = dict[str, torch.Tensor]


def lazy(tensors: TENSORS) -> LazyTensors:
    return LazyTensors(tuple(tensors), tensors.__getitem__, specs_of(tensors.items()))


def same_bits(one: TENSORS, other: TENSORS) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
