"""Rows that networks have in other orders, one for each token or label, are put in that of the merged network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError
from roundweave.storage.values.lazy import LazyTensors, known_specs, picked
from roundweave.storage.values.tensors import TensorSpec
from roundweave.tasks.matching.groups import Tensors

Numbers = Mapping[str, int]
"""The number of each token or label, by its name."""

ABSENT = -1
"""Stands for a row that a network does not have."""

LEAST = 1e-20
"""The weight of a network whose coefficient is 0, for rows that no other network has."""


@dataclass(frozen=True)
class RowOrder:
    """The rows that networks have for those of the merged one.

    `rows` has int64 (rows,) for each network, of which those that it lacks are `ABSENT`. `tensors` gives the axis
    of these rows by the names of a network's tensors that have them, which are `axes` once the network is known,
    and `options` is what the merged one's configuration says of them. Of tokens, `beside` is the folder whose
    tokenizer the merged network has, unless `tokenizer` is one of its own.
    """

    rows: tuple[torch.Tensor, ...]
    tensors: Callable[[nn.Module], Mapping[str, int]]
    options: Mapping[str, Any]
    beside: Path | None = None
    tokenizer: Any = None
    axes: Mapping[str, int] = field(default_factory=dict)

    def of(self, network: nn.Module) -> RowOrder:
        """Return the order for such a network as the merged one.

        Raises `ModelError` if it does not say which rows these are, or has another number of them in a tensor.
        """
        axes, size = self.tensors(network), len(self.rows[0])
        for name, tensor in network.state_dict().items():
            if name in axes and (found := tensor.shape[axes[name]]) != size:
                raise ModelError(f"{name} has {found} rows for {size} tokens or labels, so they have no order")
        return replace(self, axes=axes)

    def ordered(self, states: Sequence[Tensors]) -> list[LazyTensors]:
        """Return the networks' tensors with rows in one order.

        Those that a network lacks are 0, like no others.
        """
        pairs = zip(states, self.rows, strict=True)
        return [self._replaced(state, partial(self._ordered, state, rows)) for state, rows in pairs]

    def filled(self, states: Sequence[Tensors], coefficients: Sequence[float]) -> list[LazyTensors]:
        """Networks whose rows, and units, are in one order, with the others' weighted mean in rows that one lacks.

        So a row of the mean of all networks is the mean of those that have it.
        """
        fill = partial(self._filled, states, [c or LEAST for c in coefficients])
        return [self._replaced(state, partial(fill, number)) for number, state in enumerate(states)]

    def _filled(
        self, states: Sequence[Tensors], coefficients: Sequence[float], number: int, name: str
    ) -> torch.Tensor:
        """Return one tensor of a network."""
        lacking, axis = (self.rows[number] == ABSENT).nonzero().flatten(), self.axes[name]
        if not len(lacking):
            return states[number][name]
        own = states[number][name].movedim(axis, 0)
        exact = torch.promote_types(own.dtype, torch.float32)
        total = torch.zeros(len(lacking), *own.shape[1:], dtype=exact)
        weight = torch.zeros(len(lacking), dtype=exact)
        for state, rows, coefficient in zip(states, self.rows, coefficients, strict=True):
            there = rows[lacking] != ABSENT
            total[there] += coefficient * state[name].movedim(axis, 0)[lacking[there]].to(exact)
            weight[there] += coefficient
        mean = total / weight.reshape(-1, *[1] * (own.ndim - 1))
        return own.index_copy(0, lacking, mean.to(own.dtype)).movedim(0, axis).contiguous()

    def _ordered(self, state: Tensors, rows: torch.Tensor, name: str) -> torch.Tensor:
        """Return one tensor of a network, with 0 in rows that it lacks."""
        ordered = state[name].index_select(self.axes[name], rows.clamp(min=0))
        return ordered.index_fill_(self.axes[name], (rows == ABSENT).nonzero().flatten(), 0)

    def _replaced(self, state: Tensors, read: Callable[[str], torch.Tensor]) -> LazyTensors:
        """Return the tensors of a network, of which `read` gives those with these rows."""

        def shape(spec: TensorSpec) -> tuple[int, ...]:
            sizes = list(spec.shape)
            sizes[self.axes[spec.name]] = len(self.rows[0])
            return tuple(sizes)

        specs = [replace(s, shape=shape(s)) for s in known_specs(state) if s.name in self.axes]
        own = LazyTensors(tuple(spec.name for spec in specs), read, specs)
        return picked({name: (own if name in own else state, name) for name in state})


def check_of_transformers(network: nn.Module) -> None:
    """Raise `ModelError` for a network that is none of transformers, and so says nothing of its rows."""
    if not hasattr(network, "config"):
        raise ModelError(
            f"{type(network).__name__} does not say which rows are of tokens and labels; give no model"
        )


def axes_of(network: nn.Module, larger: nn.Module) -> dict[str, int]:
    """The axis along which tensors of a network differ from those of one with more tokens or labels, by name."""
    shapes, found = {name: tensor.shape for name, tensor in larger.state_dict().items()}, {}
    for name, tensor in network.state_dict().items():
        axes = [axis for axis, size in enumerate(tensor.shape) if size != shapes[name][axis]]
        if len(axes) > 1:
            raise ModelError(
                f"{name} has rows and columns for each token or label, and only one of both has an order"
            )
        if axes:
            found[name] = axes[0]
    return found


def rows_of(own: Numbers, merged: Numbers, size: int) -> torch.Tensor:
    """Return the rows int64 (size,) that a network has for those of the merged one."""
    rows = torch.full((size,), ABSENT)
    shared = [(number, own[name]) for name, number in merged.items() if name in own]
    there = torch.tensor(shared, dtype=torch.int64).reshape(-1, 2)
    rows[there[:, 0]] = there[:, 1]
    return rows
