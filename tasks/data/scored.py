"""Other data, all of whose examples are scored: by a stored round, or by each round as validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from roundweave.storage.errors import DataError, cut
from roundweave.tasks.data.description import CallEach, Description, combine
from roundweave.tasks.data.partitions import Partitions


def described_with(
    known: Description, scored: Partitions, called: Callable[[int], str], gather: CallEach
) -> tuple[Partitions, Description, Description]:
    """Other data with labels and columns as in training, their description, and that of the examples of both.

    `known` describes what was trained on, and `called` gives what messages call that, 0, and the other data, 1.
    `gather` calls a function with numbers where the examples lie. Raises `DataError` if they are not alike.
    """
    scored = replace(scored, source=scored.source.arranged(known.meaning))
    scored, descriptions = scored.described_by(gather)
    if reason := next((each.unreadable for each in descriptions if each.unreadable), ""):
        raise DataError(reason)
    padded = scored.loading.collate is not None
    own = combine(descriptions, scored.called, padded=padded)
    if unknown := own.class_names[len(known.class_names) :] if known.class_names else ():
        raise DataError(f"label {unknown[0]!r} is none of those known: {', '.join(cut(known.class_names))}")
    both = replace(combine([known, own], called, padded=padded), held_out=own.held_out)
    digests = tuple(each.digest for each in descriptions)
    return replace(scored, shared=bool(own.shared), digests=digests), own, both
