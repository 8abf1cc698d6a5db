"""Errors that maps, reduces and applies raise, as those of a round."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from roundweave.storage.errors import RoundFailed, RoundweaveError, failing_as, listed, located, show_whole
from roundweave.storage.rounds.commits import RAISED
from roundweave.tasks.data.reading import ReadingFailed


class MapRaised(RoundweaveError):
    """A map raised an error of its own. The text is the reason to refuse its partition."""


LONGEST = 300
"""How many characters of the text of a map's error are recorded."""


def map_error(round: int, partitions: Sequence[int], error: BaseException) -> RoundweaveError:
    """What a map raised, as `MapRaised`; as `RoundFailed` if it is an interrupt or a lack of memory."""
    show_whole(error)  # a refusal records one line, and the run may go on
    if isinstance(error, KeyboardInterrupt | MemoryError):
        return RoundFailed(f"round {round}: the map of partition {listed(partitions)} failed with {_said(error)}")
    try:
        text = _said(error)
    except Exception:  # noqa: BLE001 - the exception is the user's, and to get its text may fail
        text = type(error).__name__
    return MapRaised(RAISED + text[:LONGEST] + "; give its Embedding sparse=False" * ("sparse" in text.lower()))


def own_code(round: int, what: str) -> AbstractContextManager[None]:
    """A context in which errors of the user's code become `RoundFailed`; `what` names the step."""
    return failing_as(lambda error: RoundFailed(f"round {round}: {what} failed with {_said(error)}"))


def _said(error: BaseException) -> str:
    """What an error says, in one line; one of reading says already where it was raised."""
    return str(error) if isinstance(error, ReadingFailed) else located(error)
