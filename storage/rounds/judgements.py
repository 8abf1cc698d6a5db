"""What the gate of a run's configuration said of a round: whether the run is accepted, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from roundweave.storage.parsing import Round
from roundweave.storage.places.base import Place
from roundweave.storage.values.digests import read_sealed, sealed

FOLDER = "judgements"

JUDGEMENTS = f"commits/{FOLDER}"
"""The folder of the judgements, each named after its round."""


@dataclass(frozen=True)
class Judgement:
    """What a gate said of the run that ended with a round; `chain` is that of the round's record.

    `reasons` has a line for each condition, with what it was compared with.
    """

    round: Round
    chain: str
    accepted: bool
    reasons: Annotated[list[str], Field(max_length=1000)]


def key_of(round: int) -> str:
    """The key of the judgement of a round."""
    return f"{JUDGEMENTS}/{round}.json"


def read_judgement(place: Place, round: int, chain: str) -> Judgement | None:
    """What was said of a round whose record has this chain; None where nothing was, or it is damaged."""
    judgement = read_sealed(Judgement, place, key_of(round))
    return judgement if judgement and (judgement.round, judgement.chain) == (round, chain) else None


def write_judgement(place: Place, judgement: Judgement) -> None:
    """Keep what was said of a round, which survives a power loss."""
    place.write(key_of(judgement.round), sealed(judgement), durable=True)
