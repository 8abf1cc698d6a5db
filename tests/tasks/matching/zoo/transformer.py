"""Transformers, and the mixer of patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks.matching.zoo.registry import Member, Residual, member


def encoder(norm_first: bool, activation: str) -> Member:
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(6, 20)
            layer = nn.TransformerEncoderLayer(
                20, 4, 28, activation=activation, batch_first=True, norm_first=norm_first
            )
            norm = nn.LayerNorm(20) if norm_first else None
            self.layers = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
            # The encoder deep-copies one layer; equal layers would be a special case.
            for parameter in self.layers.parameters():
                if parameter.ndim > 1:
                    nn.init.xavier_uniform_(parameter)
            self.head = nn.Linear(20, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layers(self.inputs(x)).mean(dim=1))

    return Encoder(), (torch.randn(2, 7, 6),)


@member
def encoder_post_norm() -> Member:
    return encoder(norm_first=False, activation="relu")


@member
def encoder_pre_norm() -> Member:
    return encoder(norm_first=True, activation="gelu")


class Attention(nn.Module):
    """Self-attention with the queries, keys and values in one linear layer, told apart in the way named."""

    def __init__(self, width: int, heads: int, way: str, causal: bool = True):
        super().__init__()
        self.heads, self.way, self.causal = heads, way, causal
        self.packed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

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
            if self.causal:
                future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(future, float("-inf"))
            mixed = scores.softmax(dim=-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def transformer_block(width: int, heads: int, way: str, causal: bool = True) -> nn.Module:
    attention = Residual(nn.LayerNorm(width), Attention(width, heads, way, causal))
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
def vit() -> Member:
    class Vit(nn.Module):
        def __init__(self, width: int = 24):
            super().__init__()
            self.patches = nn.Conv2d(3, width, 4, 4)
            self.token = nn.Parameter(torch.randn(1, 1, width) / 4)
            self.positions = nn.Parameter(torch.randn(1, 10, width) / 4)
            self.blocks = nn.Sequential(*(transformer_block(width, 4, "unbind", causal=False) for _ in range(2)))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, 5)

        def forward(self, images: Tensor) -> Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Vit(), (torch.randn(2, 3, 12, 12),)


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


@member
def einsum_attention() -> Member:
    class EinsumAttention(nn.Module):
        def __init__(self, width: int, heads: int, depth: int):
            super().__init__()
            self.query = nn.Parameter(torch.randn(heads, width, depth) / math.sqrt(width))
            self.key = nn.Parameter(torch.randn(heads, width, depth) / math.sqrt(width))
            self.value = nn.Parameter(torch.randn(heads, width, depth) / math.sqrt(width))
            self.out = nn.Parameter(torch.randn(heads, depth, width) / math.sqrt(width))

        def forward(self, x: Tensor) -> Tensor:
            query = torch.einsum("btm,hmd->bhtd", x, self.query)
            key = torch.einsum("btm,hmd->bhtd", x, self.key)
            value = torch.einsum("btm,hmd->bhtd", x, self.value)
            weights = torch.einsum("bhqd,bhkd->bhqk", query, key).div(math.sqrt(query.shape[-1])).softmax(dim=-1)
            return torch.einsum("bhqk,bhkd,hdm->bqm", weights, value, self.out)

    blocks = [Residual(nn.LayerNorm(20), EinsumAttention(20, 4, 5)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 20), *blocks, nn.Linear(20, 8)), (torch.randn(3, 7, 6),)


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class GroupedQueries(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, repeats: bool):
        super().__init__()
        self.heads, self.shared, self.depth, self.repeats = heads, shared, width // heads, repeats
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared * self.depth, bias=False)
        self.value = nn.Linear(width, shared * self.depth, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def spread(self, x: Tensor) -> Tensor:
        times = self.heads // self.shared
        if self.repeats:
            return x.repeat_interleave(times, dim=1)
        batch, shared, time, depth = x.shape
        return x[:, :, None].expand(batch, shared, times, time, depth).reshape(batch, shared * times, time, depth)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        def split(part: nn.Linear) -> Tensor:
            return part(x).view(x.shape[0], x.shape[1], -1, self.depth).transpose(1, 2)

        def rotated(part: Tensor) -> Tensor:
            low, high = part[..., : self.depth // 2], part[..., self.depth // 2 :]
            return part * cosine + torch.cat([-high, low], dim=-1) * sine

        key, value = self.spread(rotated(split(self.key))), self.spread(split(self.value))
        mixed = functional.scaled_dot_product_attention(rotated(split(self.query)), key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Decoder(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, repeats: bool):
        super().__init__()
        self.attention_norm, self.hidden_norm = RmsNorm(width), RmsNorm(width)
        self.attention = GroupedQueries(width, heads, shared, repeats)
        self.gate = nn.Linear(width, 40, bias=False)
        self.up = nn.Linear(width, 40, bias=False)
        self.down = nn.Linear(40, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        hidden = self.hidden_norm(x)
        return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


class Llama(nn.Module):
    def __init__(self, repeats: bool, width: int = 32, heads: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(30, width)
        self.blocks = nn.ModuleList(Decoder(width, heads, 2, repeats) for _ in range(2))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, 30, bias=False)
        depth = width // heads
        speeds = 10000.0 ** (-torch.arange(0, depth, 2) / depth)
        angles = torch.outer(torch.arange(9), speeds).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine[: tokens.shape[1]], self.sine[: tokens.shape[1]])
        return self.head(self.norm(x))


@member
def llama_repeat() -> Member:
    return Llama(repeats=True), (torch.randint(30, (3, 7)),)


@member
def llama_expand() -> Member:
    return Llama(repeats=False), (torch.randint(30, (3, 7)),)
