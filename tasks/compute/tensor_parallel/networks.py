"""A rank's share of a network as an objective, with which maps and scores work as with any other."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from roundweave.storage.values.state import Layout, State
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.compute.tensor_parallel.layers import (
    ColumnParallel,
    Exchange,
    HeadParallel,
    InputParallel,
    RowParallel,
    unfuse,
)
from roundweave.tasks.compute.tensor_parallel.shares import Shares
from roundweave.tasks.networks.objective import ModelSpec, Objective, bound_network


@dataclass(frozen=True, eq=False, kw_only=True)
class ShareObjective(Objective):
    """A rank's share of an objective: its states, layouts and networks have only what this rank has."""

    shares: Shares
    group: Communicator
    apart: bool = False
    """Whether the rank is a process of its own, which then never builds the whole network in memory."""

    @classmethod
    def of(cls, objective: Objective, shares: Shares, group: Communicator, apart: bool = False) -> ShareObjective:
        """The share of an objective for the rank that `group` says."""
        whole = {f.name: getattr(objective, f.name) for f in fields(Objective)}
        return cls(**whole, shares=shares, group=group, apart=apart)

    @functools.cached_property
    def layout(self) -> Layout:
        """Where each tensor of the rank's share lies in its vectors."""
        return self.shares.layout_of(self.group.rank)

    def initial(self) -> State:
        """The rank's share of the state before the first round."""
        return self.shares.state(super().initial(), self.group.rank)

    def over(self, state: State) -> nn.Module:
        """The rank's share of a network in training mode, whose tensors are views of its share of a state."""
        skeleton = _skeleton(self.model) if self.apart else self.built
        network = bound_network(skeleton, self.layout, state)
        exchange, shares = Exchange(self.group), self.shares
        for count in shares.counts:
            setattr(network.get_submodule(count.module), count.attribute, count.values[self.group.rank])
        unfuse(network)
        kinds = {
            **dict.fromkeys(shares.column, ColumnParallel),
            **dict.fromkeys(shares.row, RowParallel),
            **dict.fromkeys(shares.heads, HeadParallel),
            **dict.fromkeys(shares.sliced, InputParallel),
        }
        for name, kind in kinds.items():
            layer: Any = network.get_submodule(name)
            layer.__class__, layer.exchange, layer.first = kind, exchange, shares.first(name, self.group.rank)
        if shares.joins is not None:
            first: Any = network.get_submodule(shares.joins)
            first.joins = True
            network.register_forward_pre_hook(lambda _, inputs: (exchange.own_examples(inputs[0]), *inputs[1:]))
            for name, parameter in network.named_parameters():
                if name in shares.before and parameter.requires_grad:
                    parameter.register_hook(exchange.sum)
        return network


@functools.lru_cache(maxsize=4)
def _skeleton(model: ModelSpec) -> nn.Module:
    """A network whose parameters have no values yet: their memory is reserved, but not touched."""
    with _Unfilled():
        network = model.build(fill=False)
    saved = network.state_dict(keep_vars=True)
    # A buffer outside the state may depend on values that were not drawn: then the network is built with them.
    return network if all(name in saved for name, _ in network.named_buffers()) else model.build()


class _Unfilled(TorchFunctionMode):
    """Skips operations that fill parameters in place."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_name = kwargs or {}
        # Functions of `torch.nn.init` pass the tensor by its name.
        filled, name = args[0] if args else by_name.get("tensor"), getattr(func, "__name__", "")
        if isinstance(filled, nn.Parameter) and name.endswith("_") and not name.endswith("__"):
            return filled if name != "requires_grad_" else func(*args, **by_name)
        return func(*args, **by_name)
