"""Fixed data with which each day's examples are compared: columns of a reference, rows of validation data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from roundweave.flows.planning.completing import scored_alone
from roundweave.flows.planning.plan import Plan
from roundweave.storage.errors import DataError
from roundweave.storage.rounds.columns import Column
from roundweave.tasks.data.description import Description, combine, gather_here
from roundweave.tasks.data.examples import Examples, tensors_of
from roundweave.tasks.data.loading import AnyExamples
from roundweave.tasks.data.partitions import Partitions


def columns_of_reference(plan: Plan, data: Any, known: Description) -> Mapping[str, Column]:
    """The columns of the reference, in the order of the examples that are `known`; it is read in this process.

    Raises `DataError` where it cannot be read.
    """
    found, descriptions = _alike(plan, data, known).described_by(gather_here, plan.placement.told)
    if reason := next((each.unreadable for each in descriptions if each.unreadable), ""):
        raise DataError(f"reference: {reason}")
    return combine(descriptions, found.called, alike=False).columns.columns


def rows_told_of(plan: Plan, validation: Any, known: Description) -> tuple[list[str], bool]:
    """Lines for rows to train on that are also validation data, and that are there twice, where there are some.

    And whether the former are there by a fault: not where rows of the validation data are equal themselves, so
    that others may be by chance. Only rows that are in memory are compared.
    """
    theirs = Counter(_rows(_alike(plan, validation, known).held_out_part(0, 0, 1)))
    every = range(0 if plan.partitions.source.partitioned else plan.partitions.split.partitions)
    own = Counter(row for each in every for row in _rows(plan.partitions.load(0, each)))
    rows, both = own.total(), sum(own[row] for row in own.keys() & theirs.keys())
    told = {
        f"{both} of {rows} rows to train on are validation data, too, which tell nothing then; remove them": both,
        f"{rows - len(own)} of {rows} rows to train on are there before": rows - len(own),
    }
    return [line for line in told if told[line]], both > 0 and len(theirs) == theirs.total()


def _alike(plan: Plan, data: Any, known: Description) -> Partitions:
    found = scored_alone(plan.config, data)
    return replace(found, source=found.source.arranged(known.meaning))


def _rows(examples: AnyExamples) -> Iterator[int]:
    """A number for each example in memory, the same for equal ones; none of what is read as it is used."""
    if not isinstance(examples, Examples):
        reading = examples.reading
        if not isinstance(reading.part, Examples):
            return
        examples = reading.dataset.take(examples.rows, reading.dtype, reading.held_out)
    bits = [each.reshape(len(each), -1).contiguous().view(torch.uint8) for each in tensors_of(examples)]
    yield from (hash(row.tobytes()) for row in torch.cat(bits, 1).numpy())
