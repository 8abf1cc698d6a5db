"""Directions that are packed: layouts, numbers drawn for them, and what a partition sends over some rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import roundweave as rw
from roundweave.flows.plugins.compressed import COMPRESSORS
from roundweave.flows.plugins.compressed.compressors import SLOT, Compressed, Compressor
from roundweave.storage.values.tensors import TensorSpec, Vectors, vector_sizes
from roundweave.tasks.numerics.pieces import accumulator
from roundweave.tasks.own_code.tables import make

SMALL = (TensorSpec("weight", "float32", (4, 8)), TensorSpec("bias", "float32", (4,)))
ODD = (
    TensorSpec("weight", "float32", (6, 2, 5)),
    TensorSpec("empty", "float32", (0, 3)),
    TensorSpec("one", "float64", ()),
    TensorSpec("wide", "float64", (5, 7)),
    TensorSpec("brain", "bfloat16", (8, 9)),
    TensorSpec("half", "float16", (9, 4)),
)
"""Tensors of several types, a scalar, and one without a single number."""


@dataclass(frozen=True)
class With:
    """What a map needs to know of an objective here."""

    layout: rw.Layout = rw.Layout(SMALL)  # noqa: RUF009


@dataclass(frozen=True)
class Given(rw.Map):
    """A map that returns its examples: an update, or the vectors (element,) of its direction by dtype."""

    def __call__(self, objective: Any, state: rw.State, examples: Any, carry: Any, seed: int) -> Any:
        assert SLOT not in carry
        vectors = isinstance(examples, dict)
        return rw.Update(examples, weight=2, metrics={"train_loss": 0.5}) if vectors else examples


def find_compressor(named: str) -> Compressor:
    """The compressor that an option of this text stands for."""
    return make("compress", named, COMPRESSORS)


def sent_of(named: str, given: Any, carry: Any | None = None, seed: int = 0, specs: Any = SMALL) -> Any:
    """The update of a map that gives this, packed by a compressor."""
    compressed = Compressed(Given(), find_compressor(named))
    return compressed(With(rw.Layout(specs)), rw.State({}), given, carry or {}, seed)


def rounds(named: str, specs: tuple[TensorSpec, ...], directions: list[Vectors]) -> tuple[list[rw.Update], Any]:
    """The updates of one partition whose map gives these directions, and what it carries at the end."""
    carry: Any = {}
    updates = []
    for seed, direction in enumerate(directions):
        narrow = {dtype: vector.to(getattr(torch, dtype)) for dtype, vector in direction.items()}
        updates.append(sent_of(named, narrow, carry, seed, specs))
        carry = updates[-1].carry
    return updates, carry


def drawn(specs: tuple[TensorSpec, ...], seed: int) -> dict[str, torch.Tensor]:
    """Random vectors (element,) by dtype, in the accumulator type."""
    generator = torch.Generator().manual_seed(seed)
    sizes = vector_sizes(specs).items()
    return {k: torch.randn(n, generator=generator, dtype=torch.float64).to(accumulator(k)) for k, n in sizes}
