"""Attention whose heads are divided among ranks (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from tasks.compute.tensor_parallel.layers import Exchange

PROJECTIONS = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")


class Attention(nn.MultiheadAttention):
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
