"""The columns of a fixed reference, with which each day's examples are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roundweave.flows.planning.completing import scored_alone
from roundweave.flows.planning.plan import Plan
from roundweave.storage.errors import DataError
from roundweave.storage.rounds.columns import Column
from roundweave.tasks.data.description import Description, combine, gather_here


def columns_of_reference(plan: Plan, data: Any, known: Description) -> Mapping[str, Column]:
    """The columns of the reference, in the order of the examples that are `known`; it is read in this process.

    Raises `DataError` where it cannot be read.
    """
    found = scored_alone(plan.config, data)
    found = replace(found, source=found.source.arranged(known.meaning))
    found, descriptions = found.described_by(gather_here, plan.placement.told)
    if reason := next((each.unreadable for each in descriptions if each.unreadable), ""):
        raise DataError(f"reference: {reason}")
    return combine(descriptions, found.called, alike=False).columns.columns
