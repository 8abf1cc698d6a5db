"""The partitions of a run's examples, as small values with which each worker loads its own examples."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import DataError, FileMissing, UsageError, nearest
from roundweave.storage.values.hashing import json_digest
from roundweave.tasks.data.datasets import Dataset, differing_files, targets_of
from roundweave.tasks.data.description import CallEach, Description, check_distinct, put_alike
from roundweave.tasks.data.examples import Examples, are_scalar_labels, single
from roundweave.tasks.data.loading import AnyExamples, LoadedExamples, forget_loaders, score_batch
from roundweave.tasks.data.placement import ANYWHERE, Placement
from roundweave.tasks.data.reading import (
    CurrentPartition,
    Loading,
    Reading,
    ReadingFailed,
    as_partition,
    forget_opened,
    opened,
)
from roundweave.tasks.data.sources.own import READ_AGAIN
from roundweave.tasks.data.sources.table import Each, Source
from roundweave.tasks.data.splits.deals import Pool, Rows
from roundweave.tasks.data.splits.split import Sampler, Split, held_out_rows, hold_out
from roundweave.tasks.numerics.pinning import derive_seed


@dataclass(frozen=True)
class Partitions:
    """The partitions of a run's examples, from which a worker loads its own.

    Args:
        source: Where the examples come from.
        split: Which partition gets which examples.
        dtype: The type of inputs and targets that are no integers.
        held_out: The share of the examples that is held out, unless the source has some; with 1, all are scored.
        digests: Those of the examples that the source must load, one for each partition or for all; empty: any.
        shared: Whether all partitions have the same held-out examples, of which each scores a part.
        loading: How examples are prepared where they are used.
        files: The names of the files that are read where they are used, each with what shows that it is the same.
        sampler: Who takes part in a round, or computes at one time for a parameter server; None: all.
        own_held_out: The share of its examples that each partition holds out for a score of its own.
        options: Options of partitions' own, by the partition's name or number, which `partition()` gives.
        placement: Where the examples of each partition stay.
        counts: How many examples each trains on, if that decides who takes part and each is loaded on its own.

    Example:
        >>> partitions = rw.Partitions(rw.find_source("digits"), rw.Split(4))
    """

    source: Source
    split: Split
    dtype: str = "float32"
    held_out: float = 0.1
    digests: tuple[str, ...] = ()
    shared: bool = False
    loading: Loading = field(default_factory=Loading)
    files: tuple[tuple[str, str], ...] = ()
    sampler: Sampler | None = None
    own_held_out: float = 0.0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    placement: Placement = ANYWHERE
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # A source that loads each partition on its own is not split, so asking for a special split is an error.
        if self.split.kind not in ("iid", "contiguous") and self.source.partitioned:
            raise UsageError(
                f"split {self.split.kind} needs all examples, and the data give each partition its own"
            )

    def __hash__(self) -> int:
        return hash((self.source, self.split))  # digests and files may be many, and caches ask for each partition

    @property
    def taking_part(self) -> int:
        """How many partitions take part in a round at most, or compute at one time for a parameter server."""
        return self.split.partitions if self.sampler is None else self.sampler.size

    def load(self, number: int, partition: int) -> AnyExamples:
        """The examples that a partition trains on under the split of this number.

        Maps of one that could not be read when the run began fail with the reason. Raises `DataError` if that can
        be read now, or if the examples have changed.
        """
        if not self._unreadable(partition):
            self._check_unchanged(partition)
            return self._part(partition, self.train_rows(partition, number)[0], False)
        if not (reason := self.described(partition).unreadable):
            raise DataError(
                f"partition {partition} of {self.source} could not be read when the run began; restore that"
            )
        unread = replace(self._reading(partition, held_out=False), unreadable=reason)
        return LoadedExamples(unread, np.arange(1))

    def _unreadable(self, partition: int) -> bool:
        """Whether a partition could not be read when the run began."""
        return self.source.partitioned and bool(self.digests) and not self.digests[partition]

    def readable(self, partition: int) -> int:
        """The partition itself, or the first that could be read if this one could not."""
        every = itertools.chain([partition], range(self.split.partitions))
        return next(each for each in every if not self._unreadable(each))

    def _check_unchanged(self, partition: int) -> None:
        """Raise `DataError` unless a partition's examples have the digest that is known of them, if one is."""
        digest = self.digests and self.digests[partition if self.source.partitioned else 0]
        if not digest or self._dataset(partition).digest == digest:
            return
        forget_examples()  # a worker may still have what it read for an earlier run
        if self._dataset(partition).digest != digest:
            mine = {name: shown for name, shown in self.files if name.startswith(self._named(partition, ""))}
            other = differing_files(mine, self._files(partition)) or f"the examples of {self.source} have changed"
            raise DataError(f"{other} since the run began; restore them")

    @property
    def held_out_together(self) -> bool:
        """Whether all partitions have the same held-out examples, of which each scores a part."""
        return not self.source.partitioned or self.shared

    def held_out_part(self, partition: int, place: int, scorers: int) -> AnyExamples:
        """The held-out examples that a partition scores, at its `place` among so many `scorers`.

        A partition that cannot be read has none of its own.
        """
        if self.sampler and not self.source.partitioned:
            return _known_part(self, 0, place, scorers)
        return self._held_out_part(partition, place, scorers)

    def _held_out_part(self, partition: int, place: int, scorers: int) -> AnyExamples:
        there = self.readable(partition)
        self._check_unchanged(there)
        held = self._rows(there, 0)[1]
        if self.held_out_together:
            held = held_out_rows(held, place, scorers, score_batch(self._part(there, held[:1], True)))
        return self._part(there, held if self.held_out_together or there == partition else held[:0], True)

    def own_part(self, partition: int, number: int) -> AnyExamples:
        """The examples by which a partition is scored itself: those that it brings, or holds out under a split.

        A partition that cannot be read has none.
        """
        there = self.readable(partition)
        if self._brings_own(there):
            return self.held_out_part(partition, 0, 1)
        self._check_unchanged(there)
        own = self.train_rows(there, number)[1]
        prepared = replace(self, loading=replace(self.loading, transform=self.loading.held_out_transform))
        return prepared._part(there, own if there == partition else own[:0], False)

    def train_rows(self, partition: int, number: int) -> tuple[Rows, Rows]:
        """The rows that a partition trains on under a split, and those that it holds out for its own score."""
        rows = self.rows(partition, number)
        if not self.own_held_out or self._brings_own(partition):
            return rows, rows[:0]
        if number and not self.source.partitioned:  # what is held out in one split is trained on in none
            apart = np.isin(rows, _known_own(self))
            return rows[~apart], rows[apart]
        seed = derive_seed(self.split.seed, "own", partition)
        return hold_out(rows, _labels(self._dataset(partition)), self.own_held_out, seed)

    def _part(self, partition: int, rows: Rows, held_out: bool) -> AnyExamples:
        """The examples of a partition at some rows: in memory, or as what reads them."""
        dataset = self._dataset(partition)
        if not self.loading.given and isinstance(dataset.part(held_out), Examples):
            return dataset.take(rows, self.dtype, held_out)
        return LoadedExamples(self._reading(partition, held_out), rows)

    def _reading(self, partition: int, held_out: bool) -> Reading:
        own, apart = self.current(partition), self.source.partitioned
        owner = own if not held_out or (apart and not self.shared) else None
        return Reading(self.source, own if apart else None, owner, held_out, self.loading, self.dtype)

    def current(self, partition: int, asked: Sequence[int] | None = None) -> CurrentPartition:
        """What the user's code is told of the partition that it is called for; None are `asked`: all take part.

        Raises `UsageError` for options of a partition that is not there.
        """
        every, (names, options) = range(self.split.partitions), _known_options(self)
        name, own = names[partition] if names else str(partition), options.get(partition, {})
        return CurrentPartition(partition, name, len(every), own, asked or every)

    def rows(self, partition: int, number: int) -> Rows:
        """The rows of the data that a split deals to a partition, int64 (row,), in the partition's own order."""
        return self._rows(partition, number)[0][0 if self.source.partitioned else partition]

    def known_targets(self) -> torch.Tensor | None:
        """All training targets (examples, *) of a source that loads them at once; None if unknown, or several."""
        return targets_of(self._dataset(0).train)

    def sizes(self, number: int) -> Sequence[int]:
        """How many examples each partition trains on under a split."""
        return self.counts or [self.size(partition, number) for partition in range(self.split.partitions)]

    def size(self, partition: int, number: int = 0) -> int:
        """How many examples one partition trains on under a split, counted where its examples lie."""
        apart = self.source.partitioned
        return len(self.load(number, partition) if apart else self.train_rows(partition, number)[0])

    def check_in_memory(self, what: str, partition: int) -> None:
        """Raise `DataError` unless a partition's examples are held in memory, one tensor each, as `what` needs."""
        train = self._dataset(partition).train
        if preparing := self.loading.given:
            raise DataError(f"{what} needs examples as they are in memory; leave {preparing[0]} out, or {what}")
        if not isinstance(train, Examples):
            raise DataError(f"{what} needs examples in memory, and {self.source} is read where it is used")
        for tensors in (train.inputs, train.targets):
            single(tensors, what)

    def sample(self, partition: int, most: int = 2, spread: bool = False) -> Examples:
        """At most `most` training examples to try a network on: the first ones, or evenly spread ones.

        They are those of another partition if this one could not be read.
        """
        partition = self.readable(partition)
        examples = len(self._dataset(partition).train)
        count = min(most, examples)
        rows = np.linspace(0, (examples if spread else count) - 1, count).astype(np.int64)
        try:
            return self._reading(partition, held_out=False).rows(rows, seed=0)
        except ReadingFailed as error:
            raise DataError(str(error)) from error

    def _brings_own(self, partition: int) -> bool:
        """Whether a partition brings held-out examples of its own."""
        apart = self.source.partitioned and not (self.shared and self.split.partitions > 1)
        return apart and self._dataset(partition).held_out is not None

    def _rows(self, partition: int, number: int) -> tuple[list[Rows], Rows]:
        """The rows to train on of what the source loads for a partition, by partition, and the held-out rows."""
        return _known_rows(self, partition if self.source.partitioned else 0, number)

    def check_again(self, partition: int) -> None:
        """Read a partition again and raise `DataError` if the user's code then gives other examples."""
        partition = self.readable(partition)
        with as_partition(self._reading(partition, held_out=False).partition):
            again = self.source.again(partition, self.split.partitions)
        if again is not None and again.digest != self._dataset(partition).digest:
            raise DataError(
                f"{self.source} gives other examples when it is read again, so no round could be replayed; "
                "seed what it draws, and augment by --transform, which is seeded"
            )
        first, other = (self.sample(partition, READ_AGAIN).evidence() for _ in range(2))
        if first != other:
            raise DataError(
                f"{self.source}: batches are others when they are prepared again, so no round could be replayed; "
                "have the transform draw from the generators of torch, numpy or random, which are seeded"
            )

    def described(self, partition: int, least: int = 0) -> Description:
        """What `describe` gives; of one of several partitions that cannot be read, only why it is `unreadable`.

        The examples are read again, as this process may have read them for an earlier run.
        """
        forget_opened(self._reading(partition, held_out=False))
        _known_rows.cache_clear()
        try:
            return self.describe(partition, least)
        except DataError as error:
            if self.placement.stays:  # what stands for it is read at another place
                raise type(error)(f"{self.called(partition)}: {error}") from error
            if isinstance(error, FileMissing) or not self.source.partitioned:
                raise
            return Description(unreadable=str(error))

    def described_by(self, gather: CallEach, least: int = 0) -> tuple[Partitions, list[Description]]:
        """These partitions with labels numbered alike, and the description of each, or the one of all."""
        numbers = range(self.split.partitions if self.source.partitioned else 1)
        descriptions = gather(functools.partial(self.described, least=least), numbers)
        if (meaning := put_alike(descriptions)) is None:
            return self, descriptions
        alike = replace(self, source=self.source.arranged(meaning))
        return alike, gather(functools.partial(alike.described, least=least), numbers)

    def called(self, partition: int) -> str:
        """What messages call a partition."""
        return " at ".join(filter(None, [f"partition {partition}", self.placement.label(partition)]))

    def describe(self, partition: int, least: int = 0) -> Description:
        """Describe what the source loads for a partition, which is everything if it loads all at once.

        Its columns are described unless `least` is 0; see `columns_of`.
        """
        dataset, (train, held_out) = self._dataset(partition), self._rows(partition, 0)
        check_distinct(dataset, self.dtype, str(self.source))
        given = dataset.held_out if self.source.partitioned else None  # others may hold out the same ones
        return replace(
            Description.of(dataset, self.sample(partition), least, prepared=bool(self.loading.given)),
            examples=sum(map(len, train)),
            held_out=len(held_out),
            shared=json_digest(given.evidence()) if given is not None else "",
            files=self._files(partition),
        )

    def assignment(self, number: int) -> np.ndarray:
        """The partition of each example under a split, int32 (examples,); -1 for held-out and unused ones."""
        owner = np.full(len(self._dataset(0).train), -1, np.int32)
        for partition, rows in enumerate(self._rows(0, number)[0]):
            owner[rows] = partition
        return owner

    def _files(self, partition: int) -> dict[str, str]:
        """What shows that the files of a partition are the same, by name, which may begin with the partition."""
        files = self._dataset(partition).files
        return {self._named(partition, name): shown for name, shown in files.items()}

    def _named(self, partition: int, name: str) -> str:
        return f"partition {partition}: {name}" if self.source.partitioned else name

    def _dataset(self, partition: int) -> Dataset:
        apart = self.current(partition) if self.source.partitioned else None
        return opened(self.source, apart, self.loading.held_bytes)


def _labels(dataset: Dataset) -> np.ndarray | None:
    """The labels of the training examples, integers (examples,), if their targets are such."""
    targets = targets_of(dataset.train)
    return targets.numpy() if targets is not None and are_scalar_labels(targets) else None


@functools.lru_cache(maxsize=2)
def _known_rows(partitions: Partitions, partition: int, number: int) -> tuple[list[Rows], Rows]:
    """What `Partitions._rows` returns, computed once for each split and not for each partition that is loaded."""
    dataset, split, apart = partitions._dataset(partition), partitions.split, partitions.source.partitioned
    labels = _labels(dataset)
    pool = Pool(np.arange(len(dataset.train)), labels, dataset.columns)
    used = pool.rows if apart else split.taking_part(pool)
    if dataset.held_out is not None:
        train, held = used, np.arange(len(dataset.held_out))
    elif partitions.held_out == 1:
        train, held = used, used
    else:
        train, held = hold_out(used, labels, partitions.held_out, split.seed)
    if apart:
        return [train], held
    return split.rows(pool.take(train), number), held


@functools.lru_cache(maxsize=2)
def _known_options(partitions: Partitions) -> tuple[Sequence[str], Mapping[int, Mapping[str, Any]]]:
    """The names of the partitions, empty if they have none, and the options of those that have some."""
    split, source = partitions.split, partitions.source
    names = source.names if isinstance(source, Each) else partitions.placement.names
    names = names if len({*names}) == len(names) else ()
    if split.deal.column:
        dataset = opened(source, None, partitions.loading.held_bytes)
        rows = split.taking_part(Pool(np.arange(len(dataset.train)), columns=dataset.columns))
        names = tuple(map(str, np.unique(dataset.columns[split.deal.column][rows]).tolist()))
    numbers = {str(n): n for n in range(split.partitions)} | {name: n for n, name in enumerate(names)}
    known: dict[int, Mapping[str, Any]] = {}
    for name, options in partitions.options.items():
        if (number := numbers.get(name, -1)) in {-1, *known}:
            advice = nearest(name, numbers, f"there are 0 to {split.partitions - 1}")
            raise UsageError(f"partition_options: {name!r} is no partition, or has options already; {advice}")
        known[number] = options
    return names, known


@functools.lru_cache(maxsize=2)
def _known_own(partitions: Partitions) -> Rows:
    """The rows that all partitions together hold out for scores of their own, under the first split."""
    return np.concatenate([partitions.train_rows(each, 0)[1] for each in range(partitions.split.partitions)])


_known_part = functools.lru_cache(maxsize=1024)(Partitions._held_out_part)
"""What `held_out_part` gives of a whole data set, kept for rounds in which another partition has the place."""


def forget_examples() -> None:
    """Clear the caches of examples of this process and its loaders; the examples may have changed on disk."""
    for known in (_known_rows, _known_options, _known_own, _known_part):
        known.cache_clear()
    forget_opened()
    forget_loaders()
