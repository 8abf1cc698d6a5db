"""Tables of names: what is in them, how it is written, and one clear line for what is not."""

from __future__ import annotations

import pytest

from storage.errors import UsageError
from tasks.tables import Entry, find, spelled

TABLE = {
    "fraction": Entry("an exact number", "fractions:Fraction", "P/Q"),
    "ordered": Entry("a dictionary", "collections:OrderedDict"),
}


def test_an_entry_is_found_with_its_argument() -> None:
    entry, argument = find("number", "fraction:3/4", TABLE)
    assert entry.load()(argument) == 0.75
    assert find("number", "ordered", TABLE)[1] == ""
    assert find("number", "fraction:a:b", TABLE)[1] == "a:b"


def test_names_are_written_with_their_arguments() -> None:
    assert spelled(TABLE) == ["fraction:P/Q", "ordered"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fractoin:3", "unknown number 'fractoin:3'; did you mean fraction? There are fraction:P/Q, and ordered"),
        ("x", "unknown number 'x'; there are fraction:P/Q, and ordered"),
        ("fraction", "number fraction needs its P/Q: fraction:P/Q"),
        ("ordered:7", "number ordered takes no '7'"),
    ],
)
def test_anything_else_is_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        find("number", text, TABLE)
    assert str(caught.value) == says
