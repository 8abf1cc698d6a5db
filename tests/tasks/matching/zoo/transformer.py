"""Transformers, and the mixer of patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks.matching.zoo.registry import Member, Residual, member


def encoder(norm_first: bool, activation: str) -> Member:
    layer = nn.TransformerEncoderLayer(20, 4, 28, activation=activation, batch_first=True, norm_first=norm_first)
    norm = nn.LayerNorm(20) if norm_first else nn.Identity()
    layers = nn.TransformerEncoder(layer, 2, None, enable_nested_tensor=False)
    for parameter in layers.parameters():  # it copies one layer; equal layers would be a special case
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return nn.Sequential(nn.Linear(6, 20), layers, norm, nn.Linear(20, 8)), (torch.randn(2, 7, 6),)


@member
def encoder_post_norm() -> Member:
    return encoder(norm_first=False, activation="relu")


@member
def encoder_pre_norm() -> Member:
    return encoder(norm_first=True, activation="gelu")


class Attention(nn.Module):
    """Causal self-attention with queries, keys and values in one linear layer, told apart in the way named."""

    def __init__(self, width: int, heads: int, way: str):
        super().__init__()
        self.heads, self.way = heads, way
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, time, width = x.shape
        packed = self.packed(x)
        if self.way == "unbind":
            return packed.reshape(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        pieces = packed.chunk(3, dim=-1) if self.way == "chunk" else packed.split(width, dim=2)
        return tuple(piece.view(batch, time, self.heads, -1).transpose(1, 2) for piece in pieces)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.parts(x)
        if self.way == "unbind":
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def transformer_block(width: int, heads: int, way: str) -> nn.Module:
    attention = Residual(nn.LayerNorm(width), Attention(width, heads, way))
    hidden = [nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width), nn.Dropout(0.1)]
    return nn.Sequential(attention, Residual(nn.LayerNorm(width), *hidden))


class Gpt(nn.Module):
    def __init__(self, way: str, heads: int = 4, width: int = 24):
        super().__init__()
        self.tokens = nn.Embedding(30, width)
        self.positions = nn.Embedding(9, width)
        self.blocks = nn.Sequential(*(transformer_block(width, heads, way) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 30, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


@member
def gpt() -> Member:
    return Gpt("split"), (torch.randint(30, (2, 7)),)


@member
def gpt_unbind() -> Member:
    return Gpt("unbind"), (torch.randint(30, (2, 7)),)


@member
def gpt_chunk() -> Member:
    return Gpt("chunk"), (torch.randint(30, (2, 7)),)


@member
def mlp_mixer() -> Member:
    class Mixer(nn.Module):
        def __init__(self, places: int, width: int):
            super().__init__()
            self.place_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.across = nn.Sequential(nn.Linear(places, 12), nn.GELU(), nn.Linear(12, places))
            self.within = nn.Sequential(nn.Linear(width, 28), nn.GELU(), nn.Linear(28, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.across(self.place_norm(x).transpose(1, 2)).transpose(1, 2)
            return x + self.within(self.channel_norm(x))

    class MlpMixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, 4)
            self.blocks = nn.Sequential(Mixer(9, 16), Mixer(9, 16), nn.LayerNorm(16))
            self.head = nn.Linear(16, 5)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(dim=1))

    return MlpMixer(), (torch.randn(2, 3, 12, 12),)
