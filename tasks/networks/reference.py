"""Small networks that are built in by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from roundweave.storage.errors import ModelError

Shape = tuple[int, ...]


def linear(inputs: Shape, outputs: int) -> nn.Module:
    """Linear or logistic regression on the flattened inputs.

    (examples, *) -> (examples, outputs).
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs), outputs))


class Mlp(nn.Module):
    """Multilayer perceptron with one hidden layer of rectified units."""

    def __init__(self, inputs: Shape, outputs: int, hidden: int = 256, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(inputs), hidden)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(examples, *) -> (examples, outputs)."""
        return self.fc2(self.dropout(functional.relu(self.fc1(inputs.flatten(1)))))  # type: ignore[no-any-return]


class Cnn(nn.Module):
    """Two convolutions with BatchNorm, each of which halves the image, and a linear head."""

    def __init__(self, inputs: Shape, outputs: int, channels: int = 16) -> None:
        super().__init__()
        if len(inputs) != 3:
            raise ModelError(f"the cnn reads images of shape (channels, height, width), not {inputs}")
        self.conv1 = nn.Conv2d(inputs[0], channels, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * channels)
        self.head = nn.Linear(2 * channels * (inputs[1] // 4) * (inputs[2] // 4), outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(examples, channels, height, width) -> (examples, outputs)."""
        hidden = functional.max_pool2d(functional.relu(self.norm1(self.conv1(images))), 2)
        hidden = functional.max_pool2d(functional.relu(self.norm2(self.conv2(hidden))), 2)
        return self.head(hidden.flatten(1))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Decoder Transformer with norms first and GELU, like GPT-2 (Radford et al. 2019), without dropout.

    `inputs` is (time,), the context; `outputs` the number of classes, which is the vocabulary unless it is given.
    `width` is divided among `heads`; `depth` counts blocks.
    """

    def __init__(
        self,
        inputs: tuple[int, ...],
        outputs: int,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        vocabulary: int | None = None,
    ) -> None:
        super().__init__()
        if len(inputs) != 1:
            raise ModelError(f"the gpt reads sequences of tokens of shape (time,), not {inputs}")
        if width % heads:
            raise ModelError(f"the gpt's width {width} cannot be divided among {heads} heads")
        self.tokens = nn.Embedding(vocabulary or outputs, width)
        self.places = nn.Embedding(inputs[0], width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, inputs[0]) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs, bias=False)
        self.apply(_initialise)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens int64 (examples, time) -> logits (examples, time, outputs); no place sees a later one."""
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(hidden)))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """A Transformer block: attention, then two layers at each place, both with residual connections."""

    def __init__(self, width: int, heads: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, time)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(examples, time, width) -> (examples, time, width)."""
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.narrow(functional.gelu(self.widen(self.norm2(hidden))))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal attention: each place attends to itself and earlier places (Vaswani et al. 2017, section 3.2)."""

    future: torch.Tensor

    def __init__(self, width: int, heads: int, time: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.register_buffer("future", torch.ones(time, time, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(examples, time, width) -> (examples, time, width)."""
        time = hidden.shape[1]
        query, key, value = (self._split(layer(hidden)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(self.future[:time, :time], float("-inf")).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(examples, time, width) -> (examples, heads, time, width of a head)."""
        apart: torch.Tensor = hidden.unflatten(-1, (self.heads, -1))
        return apart.transpose(1, 2)


def _initialise(module: nn.Module) -> None:
    """Draw weights with a standard deviation of 0.02, and set biases to 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "logistic": linear,
    "mlp": Mlp,
    "cnn": Cnn,
    "gpt": Gpt,
}
