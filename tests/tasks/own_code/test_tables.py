"""Tables of names: what is in them, how it is written, and one clear line for what is not."""

from __future__ import annotations

import pytest

from roundweave.storage.errors import UsageError
from roundweave.tasks.own_code.tables import Entry, find, make

TABLE = {
    "fraction": Entry("an exact number", "fractions:Fraction", "P/Q"),
    "ordered": Entry("a dictionary", "collections:OrderedDict"),
}


def test_a_file_alone_is_answered_by_what_is_in_the_file(own) -> None:
    file = own("import os\ndef data(): ...\nclass Network: ...\n")
    with pytest.raises(UsageError, match=rf"^number {file} is a file; .*: {file}:data, {file}:Network$"):
        find("number", str(file), TABLE)
    with pytest.raises(UsageError, match=r"unknown number 'absent\.py'"):
        find("number", "absent.py", TABLE)


def test_an_entry_is_found_with_its_argument() -> None:
    entry, argument = find("number", "fraction:3/4", TABLE)
    assert entry.load()(argument) == 0.75
    assert find("number", "ordered", TABLE)[1] == ""
    assert find("number", "fraction:a:b", TABLE)[1] == "a:b"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fractoin:3", "unknown number 'fractoin:3'; did you mean fraction? There are fraction:P/Q, and ordered"),
        ("fraction", "number fraction needs its P/Q: fraction:P/Q"),
        ("ordered:7", "number ordered takes no '7'"),
    ],
)
def test_anything_else_is_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        find("number", text, TABLE)
    assert str(caught.value) == says


def pair(left: int, right: float = 0.5) -> tuple[int, float]:
    if left < 0:
        raise UsageError("left is negative")
    return left, right


HERE = "tests.tasks.own_code.test_tables"
MADE = {
    "pair": Entry("two numbers", f"{HERE}:pair", "LEFT[:RIGHT]"),
    "none": Entry("nothing", f"{HERE}:nothing"),
    "name": Entry("a text", f"{HERE}:named", "NAME"),
}


def nothing() -> None:
    return None


def named(name: str) -> str:
    return name


def test_arguments_have_their_annotated_types() -> None:
    assert make("thing", "pair:3", MADE) == (3, 0.5)
    assert make("thing", "pair:3:1", MADE) == (3, 1.0)
    assert isinstance(make("thing", "pair:3:1", MADE)[1], float)
    assert make("thing", "none", MADE) is None
    assert make("thing", "name:a:b", MADE) == "a:b"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("xyz", r"unknown thing 'xyz'; there are pair:LEFT\[:RIGHT\], none, and name:NAME$"),
        ("", r"unknown thing ''; there are"),
        ("pair", r"thing 'pair' must be written pair:LEFT\[:RIGHT\]$"),
        ("pair:1:2:3", "must be written"),
        ("pair:1.5", r"must be written pair:LEFT\[:RIGHT\]: Input should be a valid integer"),
        ("none:1", "thing 'none:1' must be written none$"),
        ("pair:-1", "^left is negative$"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make("thing", text, MADE)
