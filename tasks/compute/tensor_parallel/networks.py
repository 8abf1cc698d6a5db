"""A rank's part of a network, as a map and a score see it: an objective like any other."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from storage.values.layout import Layout
from storage.values.state import State
from tasks.compute.communicator import Communicator
from tasks.compute.tensor_parallel.attention import Attention, unfuse
from tasks.compute.tensor_parallel.layers import ColumnParallel, InputParallel, Line, RowParallel
from tasks.compute.tensor_parallel.shares import Shares
from tasks.networks.objective import ModelSpec, Objective, bound_network


@dataclass(frozen=True, eq=False, kw_only=True)
class ShareObjective(Objective):
    """An objective of which a rank has a share; states and layouts are the rank's."""

    shares: Shares
    group: Communicator
    apart: bool = False
    """Whether the rank is a process of its own, in which no whole network is to be."""

    @classmethod
    def of(cls, objective: Objective, shares: Shares, group: Communicator, apart: bool = False) -> ShareObjective:
        """A rank's share of an objective."""
        whole = {f.name: getattr(objective, f.name) for f in fields(Objective)}
        return cls(**whole, shares=shares, group=group, apart=apart)

    @functools.cached_property
    def layout(self) -> Layout:
        """Where each tensor lies in the rank's vectors."""
        return self.shares.layout_of(self.group.rank)

    def initial(self) -> State:
        """The rank's part of the state before the first round."""
        return self.shares.state(super().initial(), self.group.rank)

    def network(self, state: State) -> nn.Module:
        """The rank's part of a network, over a copy of its part of the state, in training mode."""
        skeleton = _skeleton(self.model) if self.apart else self.built
        network = bound_network(skeleton, self.layout, state)
        line, shares = Line(self.group), self.shares
        for count in shares.counts:
            setattr(network.get_submodule(count.module), count.attribute, count.values[self.group.rank])
        unfuse(network)
        for kind, names in self._kinds.items():
            for name in names:
                layer: Any = network.get_submodule(name)
                layer.__class__, layer.line, layer.first = kind, line, shares.first(name, self.group.rank)
        if shares.joins is not None:
            first: Any = network.get_submodule(shares.joins)
            first.joins = True
            network.register_forward_pre_hook(lambda _, inputs: (line.examples(inputs[0]), *inputs[1:]))
            for name, parameter in network.named_parameters():
                if name in shares.before and parameter.requires_grad:
                    parameter.register_hook(line.sum)
        return network

    @property
    def _kinds(self) -> dict[type[nn.Module], tuple[str, ...]]:
        """What the layers with shares become."""
        shares = self.shares
        return {
            ColumnParallel: shares.column,
            RowParallel: shares.row,
            Attention: shares.heads,
            InputParallel: shares.sliced,
        }


@functools.lru_cache(maxsize=4)
def _skeleton(model: ModelSpec) -> nn.Module:
    """A network as it is built, without values of parameters: their memory is asked for and not touched."""
    with _Unfilled():
        network = model.build()
    kept = network.state_dict(keep_vars=True)
    # What is built beside the state may be made of anything drawn before.
    return network if all(name in kept for name, _ in network.named_buffers()) else model.build()


_memory: Any = torch.utils.deterministic
"""A module that torch does not declare the attributes of."""


class _Unfilled(TorchFunctionMode):
    """Leaves out what fills parameters in their place, and what deterministic algorithms fill new memory with."""

    def __enter__(self) -> Self:
        self._filling = _memory.fill_uninitialized_memory
        _memory.fill_uninitialized_memory = False
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        _memory.fill_uninitialized_memory = self._filling
        super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        # Functions of `torch.nn.init` give theirs by name.
        filled, name = args[0] if args else named.get("tensor"), getattr(func, "__name__", "")
        if isinstance(filled, nn.Parameter) and name.endswith("_") and not name.endswith("__"):
            return filled if name != "requires_grad_" else func(*args, **named)
        return func(*args, **named)
