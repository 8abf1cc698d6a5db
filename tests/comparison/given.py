"""What a user brings: examples, networks, losses and scores, of which the plain loops use the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import roundweave as rw

FEATURES, CLASSES, OUTPUTS, TOKENS, TIME, SIDE = 5, 7, 3, 9, 4, 8
"""Sizes of an example: no two that could be taken for one another are equal."""

IGNORED = -100


def examples(inputs: str, targets: str, count: int, seed: int) -> tuple[Any, Any]:
    """Inputs and targets (example, *) of these kinds; ragged ones are lists of examples of different lengths."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(count, *shape, generator=draw, dtype=torch.float64)

    def whole(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(most, (count, *shape), generator=draw)

    made: dict[str, Callable[[], Any]] = {
        "features": lambda: normal(FEATURES),
        "pictures": lambda: normal(1, SIDE, SIDE),
        "bytes": lambda: whole(256, 1, SIDE, SIDE).to(torch.uint8),
        "tokens": lambda: whole(TOKENS, TIME),
        "named": lambda: {"left": normal(FEATURES), "right": whole(TOKENS, TIME)},
        "labels": lambda: whole(CLASSES),
        "soft": lambda: normal(CLASSES).softmax(1),
        "number": normal,
        "numbers": lambda: normal(OUTPUTS),
        "places": lambda: _partly_ignored(whole(TOKENS, TIME), draw),
        "maps": lambda: _partly_ignored(whole(CLASSES, SIDE, SIDE), draw),
    }
    if inputs == "ragged":
        lengths = (1 + whole(TIME)).tolist()
        rows, labels = 1 + whole(TOKENS - 1, TIME), _partly_ignored(whole(TOKENS, TIME), draw)
        return tuple([row[:n] for row, n in zip(of, lengths, strict=True)] for of in (rows, labels))
    return made[inputs](), made[targets]()


def _partly_ignored(labels: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Labels (example, *) of which some are left out, of most examples not all."""
    left_out = torch.rand(labels.shape, generator=draw) < 0.3
    left_out[0] = True
    return labels.masked_fill(left_out, IGNORED)


class Rows(Dataset):
    """Sequences of different lengths, which are read one by one; they are kept one after the other."""

    def __init__(self, inputs: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
        self.inputs, self.targets = torch.cat(inputs), torch.cat(targets)
        self.ends = torch.tensor([0, *map(len, inputs)]).cumsum(0).tolist()

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = slice(self.ends[row], self.ends[row + 1])
        return self.inputs[place], self.targets[place]


def padded(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of sequences of different lengths: inputs with 0 behind them, and labels with -100."""
    inputs, labels = zip(*pairs, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return pad(list(inputs), batch_first=True), pad(list(labels), batch_first=True, padding_value=IGNORED)


def jittered(inputs: Any, targets: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """An example to train on, with noise."""
    return shaken(inputs), targets * (1 + 0.1 * torch.rand(())) if targets.is_floating_point() else targets


def shaken(inputs: Any) -> Any:
    """Inputs to train on or to score with: numbers with noise, bytes and tokens some places farther."""
    if isinstance(inputs, dict):
        return {name: shaken(tensor) for name, tensor in inputs.items()}
    if inputs.is_floating_point():
        return inputs + 0.2 * torch.randn(inputs.shape, dtype=inputs.dtype)
    return inputs.roll(int(torch.randint(inputs.shape[-1], ())), -1)


def renamed(inputs: torch.Tensor, targets: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The same examples with columns and labels in an order that is moved by so many, and their names."""
    labels = targets.dtype == torch.int64
    columns, classes = ([f"{n}" for n in torch.arange(size).roll(by).tolist()] for size in (FEATURES, CLASSES))
    names = {"input_names": tuple(columns), "class_names": tuple(classes) if labels else ()}
    return inputs.roll(by, 1), (targets + by) % CLASSES if labels else targets, names


# Networks. Each is called with the options of its entry in `NETWORKS`.


class Mixed(nn.Module):
    """BatchNorm, dropout and LayerNorm, of one example's features."""

    def __init__(self, outputs: int, dropout: float) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6)
        self.second, self.scale, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(torch.relu(self.norm(self.first(inputs))))
        return self.head(self.scale(hidden + torch.tanh(self.second(hidden))))


class Frozen(nn.Module):
    """A layer and a bias that are not trained, one that no output depends on, and a parameter of shape ()."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.head, self.unused = nn.Linear(FEATURES, 6), nn.Linear(6, outputs), nn.Linear(2, 2)
        self.first.requires_grad_(False)
        self.head.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.first(inputs)) * self.scale)


class Buffered(nn.Module):
    """Buffers of several dtypes: two counts, a flag, a running mean, a constant, and one that no state holds."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, outputs)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int32))
        self.register_buffer("begun", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("center", torch.zeros(FEATURES))
        self.register_buffer("constant", torch.arange(FEATURES))
        self.register_buffer("hidden", torch.full((FEATURES,), 0.5), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(inputs)
            self.steps[1] += 1
            self.begun.fill_(True)
            self.center.mul_(0.9).add_(inputs.detach().mean(0), alpha=0.1)
        return self.layer((inputs - self.center) * self.hidden + 0.01 * self.constant)


class Tied(nn.Module):
    """An embedding that is the head as well; 0 is padding. A place sees itself and those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(TOKENS, 6, padding_idx=0), nn.LayerNorm(6)
        self.head = nn.Linear(6, TOKENS)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        before = torch.arange(1, 1 + tokens.shape[1])[:, None]
        return self.head(self.norm(self.tokens(tokens).cumsum(1) / before))


class Bag(nn.Module):
    """The mean of embedded tokens; gives its logits in a dict."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(TOKENS, 6, padding_idx=2), nn.Linear(6, outputs)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(torch.tanh(self.tokens(tokens).mean(1)))}


class Pair(nn.Module):
    """Reads two inputs by name."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(TOKENS, FEATURES, mode="mean"), nn.Linear(2 * FEATURES, outputs)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([left, torch.tanh(self.bag(right))], dim=1))


class Segmenting(nn.Sequential):
    """Gives logits (examples, classes, height, width); GroupNorm and a dropout of whole channels."""

    def __init__(self, dropout: float) -> None:
        middle = nn.GroupNorm(2, 4), nn.Dropout2d(dropout)
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), *middle, nn.Conv2d(4, CLASSES, 1))


class Recurrent(nn.Module):
    """A GRU over the tokens of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.gru = nn.Embedding(TOKENS, 4), nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.tokens(tokens))[0])


class Double(nn.Module):
    """Gives logits and two numbers, in a dict or in a tuple."""

    def __init__(self, outputs: int, named: bool) -> None:
        super().__init__()
        self.body, self.head, self.aside = nn.Linear(FEATURES, 6), nn.Linear(6, outputs), nn.Linear(6, 2)
        self.named = named

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = torch.tanh(self.body(inputs))
        both = self.head(hidden), self.aside(hidden)
        return dict(zip(("logits", "aside"), both, strict=True)) if self.named else both


class Drawing(nn.Module):
    """Draws in evaluation, too."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 6), nn.Linear(6, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(functional.dropout(torch.tanh(self.body(inputs)), 0.3))


@dataclass(frozen=True)
class Private(rw.LocalSteps):
    """Local training of a network whose head each partition keeps to itself (FedPer)."""

    layer: str = "head"

    @property
    def carry(self) -> tuple[str, ...]:
        return (f"own.{self.layer}", *super().carry)

    def __call__(self, objective: Any, state: Any, examples: Any, carry: Any, seed: int) -> Any:
        start, specs = {kind: vector.clone() for kind, vector in state.params.items()}, objective.layout.params
        own = rw.views(specs, carry[self.carry[0]]) if self.carry[0] in carry else {}
        for name, tensor in rw.views(specs, start).items():
            if name in own and name.startswith(self.layer):
                tensor.copy_(own[name])
        update = self.walk(objective, replace(state, params=start), examples, seed, carry=carry)
        arrived = {kind: vector - update.direction[kind] for kind, vector in start.items()}
        return replace(update, carry={self.carry[0]: arrived, **update.carry})


def fed_per(
    layer: str, lr: float, local_steps: int, batch_size: int, momentum: float, optimizer_state: str
) -> rw.Algorithm:
    how: Any = {"lr": lr, "local_steps": local_steps, "batch_size": batch_size, "momentum": momentum}
    return rw.Algorithm(Private(layer=layer, optimizer_state=optimizer_state, **how), rw.Mean(), rw.Sgd(lr=1.0))


# The networks that are built in, as one would write them in plain torch.


class Linear(nn.Sequential):
    """What `linear` is."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(features, outputs))


class Mlp(nn.Module):
    """What `mlp` is."""

    def __init__(self, features: int, outputs: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.fc2, self.dropout = nn.Linear(features, hidden), nn.Linear(hidden, outputs), dropout

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.fc1(inputs.flatten(1)))
        return self.fc2(functional.dropout(hidden, self.dropout, self.training))


class Cnn(nn.Module):
    """What `cnn` is."""

    def __init__(self, outputs: int, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.BatchNorm2d(2 * channels)
        self.head = nn.Linear(2 * channels * (SIDE // 4) ** 2, outputs)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            pictures = functional.max_pool2d(torch.relu(norm(conv(pictures))), 2)
        return self.head(pictures.flatten(1))


class Gpt(nn.Module):
    """What `gpt` is; its attention is torch's."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(TIME, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)
        for module in [m for m in self.modules() if isinstance(m, nn.Linear | nn.Embedding)]:
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]])))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Module()
        for name in ("query", "key", "value", "out"):
            self.attention.add_module(name, nn.Linear(width, width))
        self.widen, self.narrow, self.heads = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), heads

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        of, normed = self.attention, self.norm1(hidden)
        parts = (of.query(normed), of.key(normed), of.value(normed))
        split = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        hidden = hidden + of.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.narrow(functional.gelu(self.widen(self.norm2(hidden))))


def grouped(network: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of one's own: biases have another rate."""
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    groups = [{"params": [p for name, p in trained.items() if ("bias" in name) == bias]} for bias in (True, False)]
    groups[0] |= {"lr": 0.02}
    return torch.optim.Adam([group for group in groups if group["params"]], lr=0.05, eps=1e-3, amsgrad=True)


# Losses and scores of one's own.


def logits(outputs: Any) -> torch.Tensor:
    """What a network gives, or the logits in it."""
    if isinstance(outputs, tuple):
        return outputs[0]
    return outputs["logits"] if isinstance(outputs, dict) else outputs


def aside(outputs: Any) -> torch.Tensor:
    """How far the other numbers that `Double` gives are from 1, for each example."""
    return ((outputs["aside"] if isinstance(outputs, dict) else outputs[1]) - 1).square().mean(1)


def both(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """A loss for each example, of all that `Double` gives."""
    return each(outputs, targets) + aside(outputs)


def weighted_both(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """The same as one number, over the sum of weights."""
    weight = 1.0 + targets
    return weighted(outputs, targets) + (weight * aside(outputs)).sum() / weight.sum()


def contrast(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """One number of all pairs: outputs for one label are to be alike."""
    unit, same = functional.normalize(logits(outputs), dim=1), (targets[:, None] == targets).double()
    return functional.cross_entropy(3 * unit @ unit.T, same / same.sum(1, keepdim=True))


def by_size(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """One number, in which large targets count more."""
    given, wanted = logits(outputs).flatten(1), targets.reshape(len(targets), -1)
    weight = 0.1 + wanted.abs()
    return (weight * (given - wanted).square()).sum() / weight.sum()


def huber(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """A loss for each example."""
    given, wanted = logits(outputs).flatten(1), targets.reshape(len(targets), -1)
    return functional.huber_loss(given, wanted, reduction="none").mean(1)


def each(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """A loss for each example, with smoothed labels."""
    return functional.cross_entropy(logits(outputs), targets, reduction="none", label_smoothing=0.1)


def weighted(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """One number of a batch, over the sum of its labels' weights."""
    weight = torch.arange(1.0, 1.0 + CLASSES, dtype=torch.float64)
    return functional.cross_entropy(logits(outputs), targets, weight=weight)


def sure(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """A score of each example: the greatest of its probabilities."""
    return logits(outputs).softmax(1).amax(1)


def deviation(outputs: Any, targets: torch.Tensor) -> float:
    """A score of all outputs at once."""
    return logits(outputs).std().item()
