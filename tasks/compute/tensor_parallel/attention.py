"""Attention of which each rank has a share of the heads (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from tasks.compute.tensor_parallel.layers import Line, begun, summed

PROJECTIONS = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")


class Attention(nn.MultiheadAttention):
    """Attention with a rank's share of the heads, from the unit `first` on, of what all have and give."""

    line: Line
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
        """As torch's; the weights of single heads are those of the rank's own."""
        turned = not self.batch_first and query.dim() == 3
        q, k, v = self._projected((query, key, value), turned)
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
        self.line.come_together()
        own = functional.linear(heads.transpose(-3, -2).flatten(-2), self.out_proj.weight)
        outputs = summed(own, self.line, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = summed(weights.sum(-3), self.line) / self.num_heads
        return (outputs.transpose(0, 1) if turned else outputs), weights

    def _projected(self, inputs: Sequence[torch.Tensor], turned: bool) -> list[torch.Tensor]:
        """Query, key and value of the rank's heads, (…, heads, time, width of a head)."""
        # Where the three are one tensor, its gradient is added up over the ranks once.
        shared = {id(tensor): tensor for tensor in inputs}
        shared = {name: begun(tensor, self.line) for name, tensor in shared.items()}
        self.line.go_apart()
        packed = self._qkv_same_embed_dim
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = self.in_proj_weight.chunk(3) if packed else separate
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        made = []
        for tensor, weight, bias in zip(inputs, weights, biases, strict=True):
            given = shared[id(tensor)].transpose(0, 1) if turned else shared[id(tensor)]
            projected = functional.linear(given, weight, bias)
            made.append(projected.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2))
        return made

    def _mask(
        self, query: torch.Tensor, mask: torch.Tensor | None, padding: torch.Tensor | None
    ) -> torch.Tensor | None:
        """What is added to the scores (…, heads, time, time) of a query (…, heads, time, width)."""
        mask, padding = _additive(mask, query.dtype), _additive(padding, query.dtype)
        if mask is not None and mask.dim() == 3:  # one for each example and head
            every = mask.reshape(*query.shape[:-3], self.num_heads, *mask.shape[-2:])
            mask = every.narrow(-3, self.first // self.head_dim, query.shape[-3])
        if padding is None:
            return mask
        padding = padding[..., None, None, :]
        return padding if mask is None else mask + padding


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask (*shape) as numbers to add: minus infinity where a bool one says that something is left out."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def attention_of(network: nn.Module, tensor: str, axis: int, heads: int) -> str | None:
    """The attention of so many heads of which they are an axis of a tensor; None where they are not."""
    owner, _, name = tensor.rpartition(".")
    parent, _, child = owner.rpartition(".")
    out = (child, name, axis) == ("out_proj", "weight", 1)
    place = parent if out else owner
    module = network.get_submodule(place)
    if type(module) is not nn.MultiheadAttention or module.num_heads != heads or module.add_zero_attn:
        return None
    return place if out or (name in PROJECTIONS and axis == 0) else None


def unfuse(network: nn.Module) -> None:
    """Keep torch from its fused path for encoder layers in evaluation, which reads weights past their layers."""
    for module in network.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
