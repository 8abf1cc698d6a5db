"""The partitions of a run's examples: small values with which each worker loads its own examples."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import DataError, FileMissing, UsageError, listed, nearest
from roundweave.storage.rounds.splits import partition_names
from roundweave.storage.values.hashing import json_digest
from roundweave.tasks.data.datasets import Dataset, differing_files, targets_of
from roundweave.tasks.data.description import CallEach, Description, check_distinct, put_alike
from roundweave.tasks.data.examples import Examples, are_scalar_labels, single
from roundweave.tasks.data.loading import AnyExamples, LoadedExamples, forget_loaders, score_batch
from roundweave.tasks.data.reading import (
    CurrentPartition,
    Loading,
    Reading,
    ReadingFailed,
    as_partition,
    forget_opened,
    opened,
)
from roundweave.tasks.data.sources.own import READ_AGAIN, Stream
from roundweave.tasks.data.sources.table import Each, Source
from roundweave.tasks.data.splits.deals import Pool, Rows
from roundweave.tasks.data.splits.placement import ANYWHERE, Placement
from roundweave.tasks.data.splits.split import Sampler, Split, held_out_rows, hold_out
from roundweave.tasks.numerics.pinning import derive_seed


@dataclass(frozen=True)
class Partitions:
    """The partitions of a run's examples, from which a worker loads its own.

    Args:
        source: The source of the examples.
        split: Assigns the examples to the partitions.
        dtype: The type of inputs and targets that are no integers.
        held_out: The share of held-out examples, unless the source has its own. With 1, all examples are scored.
        digests: The known digests of the examples, one for each partition or one for all; empty if unknown.
        shared: Whether all partitions have the same held-out examples, of which each scores a part.
        loading: How examples are prepared where they are used.
        files: What shows that each file that is read where it is used is unchanged, by the file's name.
        sampler: Draws the partitions of a round, or those that compute at one time for a parameter server; None
            takes all.
        own_held_out: The share of its examples that each partition holds out for a score of its own.
        options: Options of single partitions, by the partition's name or number. `partition()` gives them.
        placement: Where the examples of each partition stay.
        counts: The number of training examples of each partition, if a sampler needs it and partitions are loaded
            alone.
        names: The names of the partitions, once the examples were described; empty if there are none.

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
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A source that loads partitions on their own is not split: a special split is an error.
        if self.split.kind not in ("iid", "contiguous") and self.source.partitioned:
            raise UsageError(
                f"split {self.split.kind} needs all examples, and the data give each partition its own"
            )

    def __hash__(self) -> int:
        return hash((self.source, self.split))  # digests and files may be many, and slow to hash

    @property
    def taking_part(self) -> int:
        """The most partitions in a round, or at work at one time for a parameter server."""
        return self.split.partitions if self.sampler is None else self.sampler.size

    def load(self, number: int, partition: int) -> AnyExamples:
        """Return the examples that a partition trains on under the split of this number.

        If the partition could not be read when the run began, its maps fail with the reason. Raises `DataError` if
        the partition can be read now, or if the examples have changed.
        """
        if not self._unreadable(partition):
            self._check_unchanged(partition)
            return self._part(partition, self.train_rows(partition, number)[0], False)
        if not (reason := replace(self, digests=()).described(partition).unreadable):
            raise DataError(
                f"{self.called(partition)} of {self.source} could not be read when the run began; restore it"
            )
        unread = replace(self._reading(partition, held_out=False), unreadable=reason)
        return LoadedExamples(unread, np.arange(1))

    def _unreadable(self, partition: int) -> bool:
        """Tell whether a partition could not be read when the run began."""
        return self.source.partitioned and bool(self.digests) and not self.digests[partition]

    def readable(self, partition: int) -> int:
        """Return the partition itself, or the first readable one if this one could not be read."""
        every = itertools.chain([partition], range(self.split.partitions))
        return next(each for each in every if not self._unreadable(each))

    def _check_unchanged(self, partition: int) -> None:
        """Raise `DataError` if a partition's examples do not have their known digest."""
        digest = self.digests and self.digests[partition if self.source.partitioned else 0]
        if not digest or self._dataset(partition).digest == digest:
            return
        forget_examples()  # a worker may still have what it read for an earlier run
        if self._dataset(partition).digest != digest:
            mine = {name: shown for name, shown in self.files if name.startswith(self._named(partition, ""))}
            drawn = f"the examples of {self.source}, which may be drawn without a seed, have changed"
            other = differing_files(mine, self._files(partition)) or drawn
            raise DataError(f"{other} since the run began; restore them")

    @property
    def held_out_together(self) -> bool:
        """Whether all partitions have the same held-out examples, of which each scores a part."""
        return not self.source.partitioned or self.shared

    def held_out_part(self, partition: int, place: int, scorers: int) -> AnyExamples:
        """Return the held-out examples that a partition scores, at its `place` among so many `scorers`.

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
        """Return the examples of a partition's own score: those that it brings, or holds out under a split.

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
        """Return the rows that a partition trains on under a split, and those held out for its own score."""
        rows = self.rows(partition, number)
        if not self.own_held_out or self._brings_own(partition):
            return rows, rows[:0]
        if number and not self.source.partitioned:  # held-out examples of one split are trained on in no split
            apart = np.isin(rows, _known_own(self))
            return rows[~apart], rows[apart]
        seed = derive_seed(self.split.seed, "own", partition)
        return hold_out(rows, _labels(self._dataset(partition)), self.own_held_out, seed)

    def _part(self, partition: int, rows: Rows, held_out: bool) -> AnyExamples:
        """Return the examples of a partition at some rows: in memory, or as a reader."""
        dataset = self._dataset(partition)
        if not self.loading.given and isinstance(dataset.part(held_out), Examples):
            return dataset.take(rows, self.dtype, held_out)
        return LoadedExamples(self._reading(partition, held_out), rows)

    def _reading(self, partition: int, held_out: bool) -> Reading:
        own, apart = self.current(partition), self.source.partitioned
        owner = own if not held_out or (apart and not self.shared) else None
        return Reading(self.source, own if apart else None, owner, held_out, self.loading, self.dtype)

    def current(self, partition: int, asked: Sequence[int] | None = None) -> CurrentPartition:
        """Return what the user's code learns of the partition for which it is called.

        `asked` None means all take part.

        Raises `UsageError` for options of a partition that does not exist.
        """
        every, (names, options) = range(self.split.partitions), _known_options(self)
        name, own = names[partition] if names else str(partition), options.get(partition, {})
        return CurrentPartition(partition, name, len(every), own, asked or every)

    def rows(self, partition: int, number: int) -> Rows:
        """Return the rows of the data in a partition under a split, int64 (row,), in the partition's own order."""
        return self._rows(partition, number)[0][0 if self.source.partitioned else partition]

    def known_targets(self) -> torch.Tensor | None:
        """Return all training targets ``(example, *)`` if the source loads them at once; else None.

        Returns None for several targets by name, too.
        """
        return targets_of(self._dataset(0).train)

    def sizes(self, number: int) -> Sequence[int]:
        """Return the number of training examples of each partition under a split."""
        return self.counts or [self.size(partition, number) for partition in range(self.split.partitions)]

    def size(self, partition: int, number: int = 0) -> int:
        """Return the number of training examples of a partition under a split, counted where they lie."""
        apart = self.source.partitioned
        return len(self.load(number, partition) if apart else self.train_rows(partition, number)[0])

    def check_in_memory(self, what: str, partition: int) -> None:
        """Raise `DataError` unless a partition's examples are in memory, one tensor each, as `what` needs."""
        train = self._dataset(partition).train
        if preparing := self.loading.given:
            raise DataError(f"{what} needs unprepared examples in memory; leave {preparing[0]} out, or {what}")
        if not isinstance(train, Examples):
            raise DataError(f"{what} needs examples in memory, and {self.source} is read where it is used")
        for tensors in (train.inputs, train.targets):
            single(tensors, what)

    def sample(self, partition: int, most: int = 2, spread: bool = False) -> Examples:
        """Return at most `most` training examples to try a network on: the first ones, or evenly spread ones.

        If the partition could not be read, they come from another partition.
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
        """Tell whether a partition brings held-out examples of its own."""
        apart = self.source.partitioned and not (self.shared and self.split.partitions > 1)
        return apart and self._dataset(partition).held_out is not None

    def _rows(self, partition: int, number: int) -> tuple[list[Rows], Rows]:
        """Return the training rows by partition of what the source loads for one, and the held-out rows."""
        return _known_rows(self, partition if self.source.partitioned else 0, number)

    def check_again(self, partition: int) -> None:
        """Read a partition again, and raise `DataError` if the user's code then gives other examples."""
        partition = self.readable(partition)
        with as_partition(self._reading(partition, held_out=False).partition):
            again = self.source.again(partition, self.split.partitions)
        if again is not None and again.digest != self._dataset(partition).digest:
            raise DataError(
                f"{self.source} gives other examples when it is read again, so no round could be replayed; "
                "seed what it draws, and augment by --transform, which is seeded"
            )
        for part in self._dataset(partition).parts:
            if isinstance(part, Stream):
                part.check_order()
        first, other = (self.sample(partition, READ_AGAIN).evidence() for _ in range(2))
        if first != other:
            raise DataError(
                f"{self.source}: batches differ when they are prepared again, so no round could be replayed; "
                "have the transform draw from the generators of torch, numpy or random, which are seeded"
            )

    def described(self, partition: int, least: int = 0) -> Description:
        """Do as `describe`. A partition of several that cannot be read only has the reason why it is `unreadable`.

        The examples are read again: this process may have read them for an earlier run.
        """
        forget_opened(self._reading(partition, held_out=False))
        _known_rows.cache_clear()
        try:
            return self.describe(partition, least)
        except DataError as error:
            if self.placement.stays:  # its substitute is read at another place
                raise type(error)(f"{self.called(partition)}: {error}") from error
            if isinstance(error, FileMissing) or not self.source.partitioned:
                raise
            return Description(unreadable=str(error))

    def described_by(self, gather: CallEach, least: int = 0) -> tuple[Partitions, list[Description]]:
        """Return these partitions with labels numbered alike, and the description of each, or one of all."""
        numbers = range(self.split.partitions if self.source.partitioned else 1)
        descriptions = gather(functools.partial(self.described, least=least), numbers)
        named = replace(self, names=max(each.partition_names for each in descriptions))
        if (meaning := put_alike(descriptions)) is None:
            return named, descriptions
        alike = replace(named, source=self.source.arranged(meaning))
        return alike, gather(functools.partial(alike.described, least=least), numbers)

    def called(self, *partitions: int) -> str:
        """Return the names of partitions for messages."""
        names = partition_names(self.names or self.placement.names, self.split.partitions)
        return f"partition {listed(partitions, names)}"

    def read_names(self) -> tuple[str, ...]:
        """Return the names of the partitions, those of a column as it is read; empty if there are none."""
        column, source = self.split.deal.column, self.source
        if not column:
            return source.names if isinstance(source, Each) else self.placement.names
        dataset = opened(source, None, self.loading.held_bytes)
        rows = self.split.taking_part(Pool(np.arange(len(dataset.train)), columns=dataset.columns))
        return tuple(map(str, np.unique(dataset.columns[column][rows]).tolist()))

    def describe(self, partition: int, least: int = 0) -> Description:
        """Describe what the source loads for a partition. This is everything if the source loads all at once.

        The columns are described unless `least` is 0; see `columns_of`.
        """
        dataset, (train, held_out) = self._dataset(partition), self._rows(partition, 0)
        check_distinct(dataset, self.dtype, str(self.source))
        given = dataset.held_out if self.source.partitioned else None  # others may hold out the same examples
        return replace(
            Description.of(dataset, self.sample(partition), least, prepared=bool(self.loading.given)),
            examples=sum(map(len, train)),
            held_out=len(held_out),
            shared=json_digest(given.evidence()) if given is not None else "",
            files=self._files(partition),
            partition_names=self.read_names(),
        )

    def assignment(self, number: int) -> np.ndarray:
        """Return each example's partition under a split, int32 (example,); -1 for held-out and unused ones."""
        owner = np.full(len(self._dataset(0).train), -1, np.int32)
        for partition, rows in enumerate(self._rows(0, number)[0]):
            owner[rows] = partition
        return owner

    def _files(self, partition: int) -> dict[str, str]:
        """Return what shows that a partition's files are unchanged, by name.

        A name may begin with the partition.
        """
        files = self._dataset(partition).files
        return {self._named(partition, name): shown for name, shown in files.items()}

    def _named(self, partition: int, name: str) -> str:
        return f"partition {partition}: {name}" if self.source.partitioned else name

    def _dataset(self, partition: int) -> Dataset:
        apart = self.current(partition) if self.source.partitioned else None
        return opened(self.source, apart, self.loading.held_bytes)


def _labels(dataset: Dataset) -> np.ndarray | None:
    """Return the labels of the training examples, integers (example,), if their targets are labels."""
    targets = targets_of(dataset.train)
    return targets.numpy() if targets is not None and are_scalar_labels(targets) else None


@functools.lru_cache(maxsize=2)
def _known_rows(partitions: Partitions, partition: int, number: int) -> tuple[list[Rows], Rows]:
    """Return what `Partitions._rows` returns, computed once per split and not once per loaded partition."""
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
    """Return the names of the partitions, empty if there are none, and the options of partitions with options."""
    names, count = partitions.read_names(), partitions.split.partitions
    names = names if len({*names}) == len(names) else ()
    numbers = {str(n): n for n in range(count)} | {name: n for n, name in enumerate(names)}
    known: dict[int, Mapping[str, Any]] = {}
    for name, options in partitions.options.items():
        if (number := numbers.get(name, -1)) in {-1, *known}:
            advice = nearest(name, numbers, f"there are 0 to {count - 1}")
            raise UsageError(f"partition_options: {name!r} is no partition, or has options already; {advice}")
        known[number] = options
    return names, known


@functools.lru_cache(maxsize=2)
def _known_own(partitions: Partitions) -> Rows:
    """Return the rows that all partitions together hold out for their own scores, under the first split."""
    return np.concatenate([partitions.train_rows(each, 0)[1] for each in range(partitions.split.partitions)])


_known_part = functools.lru_cache(maxsize=1024)(Partitions._held_out_part)
"""Return what `held_out_part` gives of a whole data set, cached for rounds in which another partition is there."""


def forget_examples() -> None:
    """Clear the caches of examples of this process and its loaders; the examples may have changed on disk."""
    for known in (_known_rows, _known_options, _known_own, _known_part):
        known.cache_clear()
    forget_opened()
    forget_loaders()
