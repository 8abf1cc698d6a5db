"""GPT-2 small (Radford et al. 2019, table 2): 124 million parameters.

A run keeps this file, so it imports torch alone.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, PLACES, WIDTH, DEPTH, HEADS = 50_257, 1024, 768, 12, 12


class Block(nn.Module):
    """Causal attention, then two layers at each place, both behind a norm and with residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(examples, time, width) -> (examples, time, width)."""
        heads = self.attend(self.norm1(hidden)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.narrow(functional.gelu(self.widen(self.norm2(hidden)), approximate="tanh"))


class Gpt2(nn.Module):
    """The decoder; the head has the weights of the tokens' embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens int64 (examples, time) -> logits (examples, time, vocabulary)."""
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits
