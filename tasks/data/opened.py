"""The data sets that this process has opened, of which it holds as many as a bound on memory allows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from storage.values.digests import tensor_digest
from storage.values.hashing import json_digest
from tasks.data.datasets import Dataset, Reader, check_alike
from tasks.data.examples import Examples, tensors_of
from tasks.data.sources.table import Source

Key = tuple[Source, int, int]


@dataclass(frozen=True)
class Opened:
    """A data set, whose digest is computed when it is asked for: a loader's process need not read the bytes."""

    dataset: Dataset

    @cached_property
    def digest(self) -> str:
        """The digest of the data set; see `digest_of`."""
        return digest_of(self.dataset)


_opened: OrderedDict[Key, Opened] = OrderedDict()


def opened(source: Source, partition: int, partitions: int, memory: float = 0) -> Opened:
    """What a source gives for a partition; raises `DataError`.

    A process holds at most `memory` bytes of examples and the last data set. What was used longest ago goes first.
    """
    key = (source, partition, partitions)
    if key not in _opened:
        dataset = source.load(partition, partitions)
        check_alike(dataset, str(source))
        _opened[key] = Opened(dataset)
        size = sum(_size(one.dataset) for one in _opened.values())
        while len(_opened) > 1 and size > memory:
            _, oldest = _opened.popitem(last=False)
            size -= _size(oldest.dataset)
    _opened.move_to_end(key)
    return _opened[key]


def forget_opened() -> None:
    """Forget the data sets of this process, which may have changed on disk."""
    _opened.clear()


def digest_of(dataset: Dataset) -> str:
    """The digest of all examples in memory, of the evidence of those that are read, and of the columns."""
    parts = [piece for part in dataset.parts for piece in evidence_of(part)]
    columns = [json_digest([name, dataset.columns[name].tolist()]) for name in sorted(dataset.columns)]
    return json_digest(parts + columns)


def evidence_of(part: Examples | Reader) -> list[object]:
    """What shows that examples are the same: digests of tensors, or what a reader knows of its files."""
    return (
        [tensor_digest("", tensor) for tensor in tensors_of(part)]
        if isinstance(part, Examples)
        else part.evidence()
    )


def _size(dataset: Dataset) -> int:
    in_memory = [part for part in dataset.parts if isinstance(part, Examples)]
    return sum(tensor.nbytes for part in in_memory for tensor in tensors_of(part))


def targets_of(part: Examples | Reader) -> torch.Tensor | None:
    """All targets (example, *) of a part, one tensor; None if they are several or not known without reading."""
    targets = part.targets
    return targets if isinstance(targets, torch.Tensor) else None


def files_of(dataset: Dataset) -> dict[str, str]:
    """What shows that each file which is read where it is used is the same, by its name."""
    readers = [part for part in dataset.parts if isinstance(part, Reader)]
    return {name: shown for reader in readers for name, shown in reader.files.items()}


def differing_files(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """A text that says which file is not as it was; empty if all are."""
    name = next((name for name in sorted({**then, **now}) if then.get(name) != now.get(name)), None)
    if name is None:
        return ""
    return f"{name} {'is new' if name not in then else 'is gone' if name not in now else 'has changed'}"
