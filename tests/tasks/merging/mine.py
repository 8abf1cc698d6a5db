"""A user's file, with networks and data of the tests that merge: they name its functions by its path."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            inputs = layer(inputs).relu()
        return self.layers[-1](inputs)


class Autoencoder(nn.Module):
    """A variational one, whose spreads are read in training, or by their own method alone."""

    def __init__(self, sampling: bool = False) -> None:
        super().__init__()
        self.sampling, self.body, self.wide = sampling, nn.Linear(20, 9), nn.Linear(6, 20)
        self.mean, self.spread = nn.Linear(9, 3), nn.Linear(9, 3)
        self.open, self.out = nn.Linear(3, 9), nn.Linear(9, 6)

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(self.wide(inputs).relu()).relu()

    def spreads(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.spread(self.hidden(inputs)).exp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        code = self.mean(self.hidden(inputs))
        if self.training and self.sampling:
            code = code + torch.randn_like(code) * self.spreads(inputs)
        return self.out(self.open(code).relu())


def autoencoder() -> nn.Module:
    return Autoencoder()


def layers() -> nn.Module:
    return Layers()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 700), nn.ReLU(), nn.Linear(700, 600), nn.BatchNorm1d(600), nn.Linear(600, 3))


def tied() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    network[4].weight = network[2].weight
    return network


def chain(width: int) -> nn.Module:
    sizes = [16, *[width] * 12, 4]
    return nn.Sequential(*[each for a, b in pairwise(sizes) for each in (nn.Linear(a, b), nn.ReLU())])


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(6), requires_grad=False)
        self.fixed = nn.Linear(6, 8).requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.fixed(inputs[:, self.order]).relu())


def counted() -> nn.Module:
    return Counted()


class Scale(nn.Module):
    """Without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.scale)[:, :3]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(600, 6, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs[:, 0] + inputs[:, 1].relu() > 0).long() + (inputs[:, 2] > 0).long()


def inputs() -> tuple[torch.Tensor]:
    return (torch.zeros(3, 6),)


class Sparse(nn.Module):
    """With a parameter that it does not read, and a buffer."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(2, outputs, bias=False)
        self.unread = nn.Parameter(torch.zeros(2))
        self.register_buffer("statistic", torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs)


def sparse(outputs: int = 2) -> nn.Module:
    return Sparse(outputs)


def two_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(4000, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 3.0])
    return inputs, (inputs[:, 0] > 0).long()


def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = two_inputs()
    return inputs, labels[:, None].float()


def half_of_digits(first: int) -> tuple[tuple, tuple]:
    """Five of the digits from a first one on, and held out some of all of them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = (digits.images[:, None] / 16).astype("float32"), digits.target
    half = (labels >= first) & (labels < first + 5)
    return (images[:1200][half[:1200]], labels[:1200][half[:1200]]), (images[1200:], labels[1200:])


def low() -> tuple[tuple, tuple]:
    return half_of_digits(0)


def high() -> tuple[tuple, tuple]:
    return half_of_digits(5)


def tokens() -> dict[str, torch.Tensor]:
    found = torch.randint(0, 30, (24, 6), generator=torch.Generator().manual_seed(0))
    return {"input_ids": found, "labels": found.sum(1) % 2}


class Texts(Dataset):
    """Of other lengths each; one in fifty is longer than all others."""

    def __init__(self, examples: int) -> None:
        self.targets = torch.arange(examples) % 2

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> dict[str, object]:
        generator = torch.Generator().manual_seed(int(row))
        words = torch.randint(1, 9, (7 + row % 3 if row % 50 == 7 else 2 + row % 3,), generator=generator)
        return {"words": words, "label": int(self.targets[row])}


def texts() -> tuple[Dataset, Dataset]:
    return Texts(240), Texts(60)


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence([each["words"] for each in examples], batch_first=True)
    return {"ids": ids, "mask": (ids > 0).float(), "labels": torch.tensor([each["label"] for each in examples])}


def fixed(examples: list[dict]) -> dict[str, torch.Tensor]:
    batch = collate(examples)
    return {name: functional.pad(t, (0, 9 - t.shape[1])) if t.ndim > 1 else t for name, t in batch.items()}


class Tokens(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(9, 8), nn.Linear(8, 6), nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()

    def forward(self, mask=None, ids=None, labels=None) -> dict[str, torch.Tensor]:
        hidden = self.norm(self.hidden((self.embed(ids) * mask[..., None]).sum(1))).relu()
        logits = self.head(hidden)
        return {"logits": logits} | ({} if labels is None else {"loss": functional.cross_entropy(logits, labels)})


def by_name(norm: bool = False) -> nn.Module:
    return Tokens(norm)


def named_inputs() -> dict[str, torch.Tensor]:
    return {"ids": torch.ones(3, 5, dtype=torch.int64), "mask": torch.ones(3, 5)}


def odd() -> dict[str, str]:
    return {"ids": "words"}
