"""A reduce and an apply that replace those of an algorithm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from flows.config.base import Config, NamedOrOwn
from tasks.algebra import Algorithm
from tasks.algorithms.preset import APPLIES, is_own_part, joined, make_part
from tasks.reduces.matched import Matched
from tasks.reduces.table import REDUCES
from tasks.tables import spelled
from tasks.user_code import Code, find_code


class Parts(Config):
    """A reduce and an apply that replace those of an algorithm; None keeps the algorithm's own."""

    reduce: NamedOrOwn | None = Field(
        default=None, description=f"how updates become one: {', '.join(spelled(REDUCES))}, FILE.py:fn"
    )
    apply: NamedOrOwn | None = Field(
        default=None, description=f"the outer optimizer: {', '.join(APPLIES)}, FILE.py:fn"
    )
    apply_options: dict[str, Any] = Field(
        default={}, description="its options, such as lr", examples=[{"lr": 0.5}]
    )

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions among the parts."""
        return tuple(part for part in (self.reduce, self.apply) if isinstance(part, Code))

    def kept(self) -> dict[str, Any]:
        """The given fields, with the source of the user's functions."""
        parts = {kind: part for kind in ("reduce", "apply") if (part := getattr(self, kind)) is not None}
        kept = {kind: find_code(part) if is_own_part(kind, part) else part for kind, part in parts.items()}
        return kept | ({"apply_options": self.apply_options} if "apply" in kept else {})

    @model_validator(mode="after")
    def _options_of_one(self) -> Parts:
        if self.apply_options and self.apply is None:
            raise ValueError("apply_options need apply: the name of the outer optimizer")
        return self


class Recombined(Parts):
    """The parts that replace those of a run's algorithm.

    `before` rounds of another run are counted before this run's own for random numbers, splits and schedules, so
    that this run's rounds are those that would have followed in the other run.
    """

    before: int = Field(default=0, ge=0, description="rounds of another run that count as gone before")

    def replaced(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with its parts replaced by these; raises `UsageError`, `CodeError`."""
        reduce: Any = algorithm.reduce
        apply = algorithm.apply
        if self.reduce is not None:
            other = make_part("reduce", self.reduce, {})
            matched = isinstance(reduce, Matched) and not isinstance(other, Matched)
            reduce = replace(reduce, inner=other) if matched else other  # a matching reduce goes on matching units
        if self.apply is not None:
            apply = make_part("apply", self.apply, self.apply_options)
        return joined(replace(algorithm, reduce=reduce, apply=apply))


def is_part(text: str) -> bool:
    """Whether a text names a built-in reduce or apply, with or without an argument after a colon."""
    return text.partition(":")[0] in {**REDUCES, **APPLIES}
