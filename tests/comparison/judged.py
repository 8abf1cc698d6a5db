"""What a user brings whose numbers are computed by hand: networks for each form of outputs, and losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

FEATURES, TOKENS, IGNORED = 5, 6, -100


class Rowed(nn.Module):
    """Features (example, feature) -> outputs (example, output)."""

    def __init__(self, outputs: int, shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(FEATURES, outputs), tuple(shape)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs).unflatten(1, self.shape) if self.shape else self.layer(inputs)


class Placed(nn.Module):
    """Tokens (example, place) -> logits (example, place, class), if `first` (example, class, place)."""

    def __init__(self, classes: int, first: bool = False, tokens: int = TOKENS) -> None:
        super().__init__()
        self.tokens, self.head, self.first = nn.Embedding(tokens, 6), nn.Linear(6, classes), first

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.tanh(3 * self.tokens(tokens)))
        return logits.mT if self.first else logits


class Mapped(nn.Module):
    """Pictures (example, 1, height, width) -> logits (example, class, height, width), or with the classes last."""

    def __init__(self, classes: int, last: bool = False) -> None:
        super().__init__()
        self.layer, self.last = nn.Conv2d(1, classes, 3, padding=1), last

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        logits = self.layer(3 * pictures)
        return logits.movedim(1, -1) if self.last else logits


class Labelled(Placed):
    """A network with a loss of its own, as those of Hugging Face: the next token's if it is to `shift` labels."""

    def __init__(self, classes: int, shift: bool, tokens: int = TOKENS) -> None:
        super().__init__(classes, tokens=tokens)
        self.shift = shift

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = super().forward(tokens)
        if labels is None:
            return {"logits": logits}
        read, meant = (logits[:, :-1], labels[:, 1:]) if self.shift else (logits, labels)
        return {"logits": logits, "loss": functional.cross_entropy(read.mT, meant)}


def each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One number, over the weights of the labels that are not 3."""
    weight = torch.arange(1.0, 1.0 + outputs.shape[1], dtype=outputs.dtype)
    return functional.cross_entropy(outputs, targets, weight=weight, ignore_index=3)


def weighted_places(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same at each place that has a label, of logits (example, place, class)."""
    return weighted(outputs.flatten(0, 1), targets.flatten().masked_fill(targets.flatten() == IGNORED, 3))


def each_sequence(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over a sequence's labels for each, (example,); 0 without any."""
    losses = functional.cross_entropy(outputs.mT, targets, reduction="none")
    return losses.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)


def binary(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(outputs.reshape(-1), targets.to(outputs.dtype))
