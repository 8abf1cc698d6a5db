"""What the numbers of a network's inputs and outputs mean: their names, in order, and how inputs are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from roundweave.storage.errors import DataError


@dataclass(frozen=True)
class Meaning:
    """The names of labels and of input columns, each in the order of their numbers; empty if they have none.

    `kind` says what inputs are as they are stored: pixels (which are divided by 255), integers or numbers; empty
    if that is not known.
    """

    class_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    kind: str = ""

    @classmethod
    def recorded(cls, data: Mapping[str, Any]) -> Meaning:
        """The meaning that the record of a run's data has."""
        return cls(tuple(data.get("class_names", ())), tuple(data.get("input_names", ())), data.get("kind", ""))

    def put_first(self, other: Meaning) -> Meaning:
        """The names of `other` in the order that they have here. Labels known here alone keep their numbers."""
        return Meaning(
            _in_order(other.class_names, self.class_names) if other.class_names else (),
            _in_order(other.input_names, [name for name in self.input_names if name in other.input_names]),
            other.kind,
        )


NO_NAMES = Meaning()
"""What is known where nothing is, as of a file of tensors."""


def _in_order(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    return (*known, *(name for name in names if name not in known))


def agree(each: Mapping[str, Meaning]) -> Meaning:
    """The meaning that all have, by what each is called; some may lack the last names.

    Raises `DataError` where one number means two things: labels are numbers here and names there, a place has two
    names, or inputs are pixels here and numbers there.
    """
    agreed_kind({name: "names" if known.class_names else "numbers" for name, known in each.items()}, "labels")
    kind = agreed_kind({name: known.kind for name, known in each.items()})
    classes = agreed_names({name: known.class_names for name, known in each.items()}, "class")
    columns = agreed_names({name: known.input_names for name, known in each.items()}, "column")
    return Meaning(classes, columns, kind)


def agreed_kind(kinds: Mapping[str, str], what: str = "inputs") -> str:
    """The kind that is known of some, of inputs or of `what`; raises `DataError` where two are of other ones."""
    known = {name: kind for name, kind in kinds.items() if kind}
    one, first = next(iter(known.items()), ("", ""))
    for name, other in known.items():
        if other != first:
            raise DataError(f"{name} has {what} that are {other}, {one} has {first}; make them alike")
    return first


def agreed_names(named: Mapping[str, tuple[str, ...]], what: str) -> tuple[str, ...]:
    """The names that all have, some perhaps without the last ones; raises `DataError` for others."""
    best, longest = max(named.items(), key=lambda each: len(each[1]), default=("", ()))
    for one, names in named.items():
        for place, (name, other) in enumerate(zip(names, longest, strict=False)):
            if name != other:
                raise DataError(
                    f"{one} has {name!r} as {what} {place}, where {best} "
                    f"has {other!r}; give both the same, in the same order"
                )
    return longest


def common(each: Sequence[Meaning]) -> Meaning:
    """An order for the labels of all: first what they begin with alike, then the others, sorted.

    Columns are not put in another one, as who has their weights may be trained with each order.
    """
    named = [one.class_names for one in each]
    alike = [names[0] for names in takewhile(lambda names: len({*names}) == 1, zip(*named, strict=False))]
    others = sorted({name for names in named for name in names} - {*alike})
    columns = {one.input_names for one in each}
    return Meaning((*alike, *others), columns.pop() if len(columns) == 1 else ())
