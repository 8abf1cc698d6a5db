"""Linear layers and attention that are divided among ranks (Shoeybi et al. 2019, section 3; Krizhevsky 2014).

A column-parallel layer takes inputs that all ranks have, and each rank computes its own units from them. A
row-parallel layer takes each rank's units, and adds up the outputs of all ranks. Between the two, and for examples
that only one rank has, each rank draws its own random numbers. Everywhere else all ranks draw the same. Maps and
scores work with a rank's share of an objective as with any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from roundweave.flows.plugins.tensor_parallel.shares import Shares, even
from roundweave.storage.values.state import Layout, State
from roundweave.storage.values.tensors import Record
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.networks.objective import ModelSpec, Objective, network_holding
from roundweave.tasks.numerics.pinning import derive_seed


class Exchange:
    """How the layers of a rank's network exchange tensors with other ranks, and which random numbers they draw."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self._lengths: list[int] = []
        self._common: torch.Tensor | None = None
        self._seed: int | None = None

    def begun(self, inputs: torch.Tensor) -> torch.Tensor:
        """Pass on inputs (*shape) that all ranks have, so that their gradient is summed over the ranks."""
        return _differentiable(inputs, lambda x: x.view_as(x), self.sum) if inputs.requires_grad else inputs

    def summed(self, outputs: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The sum of outputs (*shape) over the ranks, plus a bias that all ranks have."""
        total = _differentiable(outputs, self.sum, lambda gradient: gradient)
        return total if bias is None else total + bias

    def joined(self, inputs: torch.Tensor) -> torch.Tensor:
        """All ranks' examples (example, *) as one batch; each rank gets the gradients of its own examples."""
        return _differentiable(inputs, self._gather, self._sum_of_own)

    def sliced(self, inputs: torch.Tensor, first: int, size: int) -> torch.Tensor:
        """A rank's slice of the last axis of inputs that all ranks have; gradients of all slices are joined."""
        return _differentiable(
            inputs, lambda x: x.narrow(-1, first, size), lambda gradient: self._gather(gradient, -1)
        )

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, (*shape), added in the order of the ranks."""
        return _added(self._of_all(tensor))

    def own_examples(self, batch: torch.Tensor) -> torch.Tensor:
        """This rank's examples of a batch, (example, *), for which it draws random numbers of its own."""
        self.go_apart()
        self._lengths = [end - first for first, end in even(len(batch), self.group.ranks)]
        parts: Sequence[torch.Tensor] = batch.split(self._lengths)
        return parts[self.group.rank]

    def _sum_of_own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of this rank's examples in the sum of the ranks' tensors, each (example, *)."""
        parts = self.group.scatter([_Sent(part) for part in tensor.split(self._lengths)])
        return _added([part.tensor for part in parts])

    def _gather(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        """The ranks' tensors joined along an axis."""
        return torch.cat(self._of_all(tensor), axis)

    def _of_all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [sent.tensor for sent in self.group.all_gather(_Sent(tensor.detach()))]

    def go_apart(self) -> None:
        """From here on this rank draws random numbers of its own.

        Their seed is drawn by all ranks alike. When checkpointed activations are computed again, it is the same.
        """
        if not self._is_apart:
            self._seed = derive_seed(int(torch.randint(2**62, ())), "rank", self.group.rank)
            self._common = torch.get_rng_state()
            torch.default_generator.manual_seed(self._seed)

    def come_together(self) -> None:
        """From here on all ranks draw the same random numbers again."""
        if self._is_apart:
            assert self._common is not None
            torch.set_rng_state(self._common)

    @property
    def _is_apart(self) -> bool:
        """Whether the generator has this rank's own seed.

        It is asked of the generator, as torch sets its state back when it computes activations again.
        """
        return torch.initial_seed() == self._seed


def _added(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum of tensors, (*shape), added from the first to the last."""
    return sum(parts[1:], parts[0])


class _Sent(Record):
    """A tensor that is sent to another rank."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.contiguous()


Operation = Callable[[torch.Tensor], torch.Tensor]


class _Differentiable(torch.autograd.Function):
    """Applies one operation to a tensor, and in the backward pass another one to its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forward: Operation, backward: Operation) -> torch.Tensor:
        ctx.operation = backward
        return forward(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.operation(gradients[0]), None, None


def _differentiable(tensor: torch.Tensor, forward: Operation, backward: Operation) -> torch.Tensor:
    made: torch.Tensor = _Differentiable.apply(tensor, forward, backward)
    return made


class ColumnParallel(nn.Linear):
    """A linear layer that computes a rank's share of the units.

    If it `joins`, its inputs are the rank's examples, and it first joins those of all ranks to the whole batch.
    """

    exchange: Exchange
    joins: bool = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (…, inputs) to (…, the rank's units)."""
        if self.joins:
            self.exchange.come_together()
        inputs = self.exchange.joined(inputs) if self.joins else self.exchange.begun(inputs)
        self.exchange.go_apart()
        return functional.linear(inputs, self.weight, self.bias)


class RowParallel(nn.Linear):
    """A linear layer that takes a rank's share of the units, and gives outputs that all ranks have."""

    exchange: Exchange

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (…, the rank's units) to (…, outputs)."""
        self.exchange.come_together()
        return self.exchange.summed(functional.linear(inputs, self.weight), self.bias)


class InputParallel(nn.Linear):
    """A linear layer that uses a rank's slice of the inputs, which begins at index `first`."""

    exchange: Exchange
    first: int

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (…, inputs) to (…, outputs), which all ranks have."""
        own = self.exchange.sliced(inputs, self.first, self.weight.shape[1])
        return self.exchange.summed(functional.linear(own, self.weight), self.bias)


PROJECTIONS = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")


class HeadParallel(nn.MultiheadAttention):
    """Multi-head attention with a rank's share of the heads. All ranks have the same inputs and outputs.

    `first` is the first unit of the rank's share: its first head times the width of a head.
    """

    exchange: Exchange
    first: int

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute what `nn.MultiheadAttention` does. Weights that are not averaged are of this rank's heads."""
        time_first = not self.batch_first and query.dim() == 3
        q, k, v = self._projected((query, key, value), time_first)
        causal = is_causal and not need_weights and key_padding_mask is None
        mask = None if causal else self._mask(q, attn_mask, key_padding_mask)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-2, -1)
            weights = functional.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            heads = weights @ v
        else:
            heads = functional.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        self.exchange.come_together()
        own = functional.linear(heads.transpose(-3, -2).flatten(-2), self.out_proj.weight)
        outputs = self.exchange.summed(own, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = self.exchange.summed(weights.sum(-3)) / self.num_heads
        return (outputs.transpose(0, 1) if time_first else outputs), weights

    def _projected(self, inputs: Sequence[torch.Tensor], time_first: bool) -> list[torch.Tensor]:
        """Query, key and value of the rank's heads, (…, heads, time, width of a head).

        With `time_first` the inputs are (time, example, width) instead of (example, time, width).
        """
        # If several inputs are one tensor, its gradient must be added up over the ranks only once.
        shared = {tensor: self.exchange.begun(tensor) for tensor in dict.fromkeys(inputs)}
        self.exchange.go_apart()
        packed = self._qkv_same_embed_dim
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = self.in_proj_weight.chunk(3) if packed else separate
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        by_head = []
        for tensor, weight, bias in zip(inputs, weights, biases, strict=True):
            batch_first = shared[tensor].transpose(0, 1) if time_first else shared[tensor]
            projected = functional.linear(batch_first, weight, bias)
            by_head.append(projected.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2))
        return by_head

    def _mask(
        self, query: torch.Tensor, mask: torch.Tensor | None, padding: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Both masks as one to add to the scores (…, heads, time, time) of a query (…, heads, time, width)."""
        mask, padding = _additive(mask, query.dtype), _additive(padding, query.dtype)
        if mask is not None and mask.dim() == 3:  # a mask for each example and head
            every = mask.reshape(*query.shape[:-3], self.num_heads, *mask.shape[-2:])
            mask = every.narrow(-3, self.first // self.head_dim, query.shape[-3])
        if padding is None:
            return mask
        padding = padding[..., None, None, :]
        return padding if mask is None else mask + padding


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask (*shape) as numbers to add to scores; where a bool mask leaves something out, minus infinity."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def attention_of(network: nn.Module, tensor: str, axis: int, heads: int) -> str | None:
    """The name of the attention module whose `heads` an axis of a tensor holds; None if it holds no heads."""
    owner, _, name = tensor.rpartition(".")
    parent, _, child = owner.rpartition(".")
    out = (child, name, axis) == ("out_proj", "weight", 1)
    place = parent if out else owner
    module = network.get_submodule(place)
    if type(module) is not nn.MultiheadAttention or module.num_heads != heads or module.add_zero_attn:
        return None
    return place if out or (name in PROJECTIONS and axis == 0) else None


def unfuse(network: nn.Module) -> None:
    """Turn off torch's fused path for encoder layers in evaluation: it uses weights without calling the layers."""
    for module in network.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


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
        network = network_holding(skeleton, self.layout, state)
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
