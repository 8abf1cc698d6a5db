"""The partitions of a run's examples, as small values with which each worker loads its own examples."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from storage.errors import DataError, UsageError
from storage.values.digests import tensor_digest
from storage.values.hashing import json_digest
from tasks.data.examples import Dataset, Examples, are_labels, are_scalar_labels, check_alike
from tasks.data.sources.table import Source
from tasks.data.splits.deals import Pool, Rows
from tasks.data.splits.split import Split, deal_held_out, hold_out


@dataclass(frozen=True)
class Partition:
    """One partition's examples: those to train on, and the held-out ones with which it scores the network."""

    train: Examples
    held_out: Examples


@dataclass(frozen=True)
class Description:
    """What a network's construction needs to know of the examples; shapes are those of one example.

    `labels` says whether targets are class labels: one for each example, shape (), or one for each place, such as
    (time,). `class_names` are the labels' names before they were coded as numbers. If every partition has the same
    held-out examples, `shared` is their digest and they are counted once; else it is empty.
    """

    examples: int
    held_out: int
    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    labels: bool
    classes: int
    digest: str
    class_names: tuple[str, ...] = ()
    shared: str = ""


@dataclass(frozen=True)
class Partitions:
    """The partitions of a run's examples, from which a worker loads its own.

    Args:
        source: Where the examples come from.
        split: Which partition gets which examples.
        dtype: The type of inputs and targets that are no integers.
        held_out: The share of the examples that is held out, unless the source has some.
        digests: Those of the examples that the source must load, one for each partition or for all; empty: any.
        shared: Whether all partitions have the same held-out examples, of which each scores a part.

    Example:
        >>> partitions = rw.Partitions(rw.find_source("digits"), rw.Split(4))
    """

    source: Source
    split: Split
    dtype: str = "float32"
    held_out: float = 0.1
    digests: tuple[str, ...] = ()
    shared: bool = False

    def __post_init__(self) -> None:
        # A source that loads each partition on its own is not split, so asking for a special split is an error.
        if self.split.kind not in ("iid", "contiguous") and self.source.partitioned:
            raise UsageError(
                f"split {self.split.kind} needs all examples, and the data give each partition its own"
            )

    def load(self, number: int, partition: int) -> Partition:
        """Load a partition under the split of this number; raises `DataError` if the examples have changed."""
        dataset, digest = self._dataset(partition)
        place = 0 if self.source.partitioned else partition
        if self.digests and digest != self.digests[partition if self.source.partitioned else 0]:
            raise DataError(f"the examples of {self.source} have changed since the run began; restore them")
        train, held_out = self._rows(partition, number)
        held = deal_held_out(held_out[0], self.split.partitions)[partition] if self.shared else held_out[place]
        given = dataset.held_out is not None
        return Partition(dataset.take(train[place], self.dtype), dataset.take(held, self.dtype, held_out=given))

    def targets(self) -> torch.Tensor:
        """The targets (examples, *) of all training examples that the source loads at once."""
        return self._dataset(0)[0].train.targets

    def train_targets(self, number: int) -> list[torch.Tensor]:
        """The targets (examples, *) that each partition trains on under a split."""
        if self.source.partitioned:
            return [self.load(number, partition).train.targets for partition in range(self.split.partitions)]
        targets = self.targets()
        return [targets[torch.from_numpy(rows)] for rows in self._rows(0, number)[0]]

    def sample(self, partition: int, most: int = 2, spread: bool = False) -> Examples:
        """At most `most` training examples to try a network on: the first ones, or evenly spread ones."""
        dataset, _ = self._dataset(partition)
        count = min(most, len(dataset.train))
        last = len(dataset.train) if spread else count
        return dataset.take(np.linspace(0, last - 1, count).astype(np.int64), self.dtype)

    def _rows(self, partition: int, number: int) -> tuple[list[Rows], list[Rows]]:
        """The rows to train on and the held-out rows of what the source loads for a partition, by partition."""
        return _known_rows(self, partition if self.source.partitioned else 0, number)

    def check_again(self, partition: int) -> None:
        """Read a partition again and raise `DataError` if the user's code then gives other examples."""
        again = self.source.again(partition, self.split.partitions)
        if again is None:
            return
        dataset, _ = self._dataset(partition)
        first, other = _tensors(dataset.train, dataset.held_out), _tensors(again.train, again.held_out)
        same = [tensor_digest("", a[: len(b)]) == tensor_digest("", b) for a, b in zip(first, other, strict=False)]
        if len(first) != len(other) or not all(same):
            raise DataError(
                f"{self.source} gives other examples when it is read again, so no round could be replayed; "
                "seed what it draws, and move random augmentation into the model's forward, in training"
            )

    def describe(self, partition: int) -> Description:
        """Describe what the source loads for a partition, which is everything if it loads all at once."""
        dataset, digest = self._dataset(partition)
        train, held_out = self._rows(partition, 0)
        targets = dataset.train.targets
        labels = are_labels(targets)
        every = [tensor for part in filter(None, (dataset.train, dataset.held_out)) for tensor in _labels_of(part)]
        return Description(
            examples=sum(map(len, train)),
            held_out=sum(map(len, held_out)),
            inputs=tuple(dataset.train.inputs.shape[1:]),
            targets=tuple(targets.shape[1:]),
            labels=labels,
            classes=max(dataset.classes, *(int(t.max()) + 1 for t in every)) if labels else 0,
            digest=digest,
            class_names=dataset.class_names,
            shared=json_digest(_digests(dataset.held_out)) if dataset.held_out and self.source.partitioned else "",
        )

    def assignment(self, number: int) -> np.ndarray:
        """The partition of each example under a split, int32 (examples,); -1 for held-out and unused ones."""
        dataset, _ = self._dataset(0)
        owner = np.full(len(dataset.train), -1, np.int32)
        for partition, rows in enumerate(self._rows(0, number)[0]):
            owner[rows] = partition
        return owner

    def _dataset(self, partition: int) -> tuple[Dataset, str]:
        apart = self.source.partitioned
        return _load(self.source, partition if apart else 0, self.split.partitions if apart else 1)


@functools.lru_cache(maxsize=2)
def _known_rows(partitions: Partitions, partition: int, number: int) -> tuple[list[Rows], list[Rows]]:
    """What `Partitions._rows` returns, computed once for each split and not for each partition that is loaded."""
    dataset, split, apart = partitions._dataset(partition)[0], partitions.split, partitions.source.partitioned
    targets = dataset.train.targets
    labels = targets.numpy() if are_scalar_labels(targets) else None
    pool = Pool(np.arange(len(targets)), labels, dataset.columns)
    used = pool.rows if apart else split.taking_part(pool)
    if dataset.held_out is not None:
        train, held = used, np.arange(len(dataset.held_out))
    else:
        known = np.zeros(len(used)) if labels is None else labels[used]
        train, held = (used[rows] for rows in hold_out(known, partitions.held_out, split.seed))
    if apart:
        return [train], [held]
    return split.rows(pool.take(train), number), deal_held_out(held, split.partitions)


@functools.lru_cache(maxsize=1)
def _load(source: Source, partition: int, partitions: int) -> tuple[Dataset, str]:
    dataset = source.load(partition, partitions)
    check_alike(dataset, str(source))
    columns = [json_digest([name, dataset.columns[name].tolist()]) for name in sorted(dataset.columns)]
    return dataset, json_digest(_digests(dataset.train, dataset.held_out) + columns)


def forget_examples() -> None:
    """Clear this process's cache of examples, which may have changed on disk."""
    _known_rows.cache_clear()
    _load.cache_clear()


def _tensors(*parts: Examples | None) -> list[torch.Tensor]:
    return [tensor for part in parts if part is not None for tensor in (part.inputs, part.targets)]


def _digests(*parts: Examples | None) -> list[str]:
    return [tensor_digest("", tensor) for tensor in _tensors(*parts)]


def _labels_of(examples: Examples) -> list[torch.Tensor]:
    """The tensors that show which classes there are: the targets, and for sequences of tokens also the inputs."""
    inputs, targets = examples.inputs, examples.targets
    tokens = targets.ndim > 1 and inputs.shape == targets.shape and inputs.dtype == torch.int64
    return [targets, inputs] if tokens else [targets]


def combine(descriptions: Sequence[Description]) -> Description:
    """Combine the partitions' descriptions into one; raises `DataError` if two do not fit together."""
    first = descriptions[0]
    for number, other in enumerate(descriptions):
        if (other.inputs, other.targets, other.labels) != (first.inputs, first.targets, first.labels):
            raise DataError(
                f"partition {number} has inputs {other.inputs} and targets {other.targets}, "
                f"partition 0 has {first.inputs} and {first.targets}"
            )
    shared = first.shared if len({d.shared for d in descriptions}) == 1 else ""
    return replace(
        first,
        examples=sum(d.examples for d in descriptions),
        held_out=first.held_out if shared else sum(d.held_out for d in descriptions),
        classes=max(d.classes for d in descriptions),
        digest=json_digest([d.digest for d in descriptions]),
        shared=shared,
    )
