"""The meaning of a network's inputs and outputs: their names, in order, and the kind of stored inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from roundweave.storage.errors import DataError


@dataclass(frozen=True)
class Meaning:
    """The names of labels and of input columns, each in the order of their numbers; empty without names.

    `kind` says what stored inputs are: pixels (which are divided by 255), integers or numbers; empty if unknown.
    """

    class_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    kind: str = ""

    @classmethod
    def recorded(cls, data: Mapping[str, Any]) -> Meaning:
        """Return the meaning that the record of a run's data has."""
        return cls(tuple(data.get("class_names", ())), tuple(data.get("input_names", ())), data.get("kind", ""))

    def put_first(self, other: Meaning) -> Meaning:
        """Return the names of `other` in the order that they have here.

        Labels known here alone keep their numbers.
        """
        return Meaning(
            _in_order(other.class_names, self.class_names) if other.class_names else (),
            _in_order(other.input_names, [name for name in self.input_names if name in other.input_names]),
            other.kind,
        )


NO_NAMES = Meaning()
"""Names of a file without any, such as a file of tensors."""


def _in_order(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    return (*known, *(name for name in names if name not in known))


def agree(each: Mapping[str, Meaning]) -> Meaning:
    """Return the meaning that all have, with the name of each in messages. Some may lack the last names.

    Raises `DataError` if one number means two things: labels are numbers here and names there, a place has two
    names, or inputs are pixels here and numbers there.
    """
    agreed_kind({name: "names" if known.class_names else "numbers" for name, known in each.items()}, "labels")
    kind = agreed_kind({name: known.kind for name, known in each.items()})
    classes = agreed_names({name: known.class_names for name, known in each.items()}, "class")
    columns = agreed_names({name: known.input_names for name, known in each.items()}, "column")
    return Meaning(classes, columns, kind)


def agreed_kind(kinds: Mapping[str, str], what: str = "inputs") -> str:
    """Return the known kind of inputs, or of `what`. Raises `DataError` if two kinds differ."""
    known = {name: kind for name, kind in kinds.items() if kind}
    one, first = next(iter(known.items()), ("", ""))
    for name, other in known.items():
        if other != first:
            raise DataError(f"{name} has {what} that are {other}, {one} has {first}; make them alike")
    return first


def agreed_names(named: Mapping[str, tuple[str, ...]], what: str) -> tuple[str, ...]:
    """Return the names that all have; some may lack the last ones. Raises `DataError` for different names."""
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
    """Return an order for the labels of all: first the common beginning, then the others, sorted.

    Columns keep their order, because weights may have been trained with it. If partitions encode different texts
    of a column, such as ``city=Rome``, the columns of all texts are joined.
    """
    named = [one.class_names for one in each]
    alike = [names[0] for names in takewhile(lambda names: len({*names}) == 1, zip(*named, strict=False))]
    others = sorted({name for names in named for name in names} - {*alike})
    return Meaning((*alike, *others), _encoded([one.input_names for one in each]))


def _encoded(named: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all columns if they are the same ones but for the texts after ``=``, sorted; else none."""
    places = {tuple(dict.fromkeys(name.partition("=")[0] for name in one)) for one in named}
    order, every = places.pop(), {name: name.partition("=")[0] for one in named for name in one}
    return () if places else tuple(sorted(every, key=lambda name: (order.index(every[name]), name)))
