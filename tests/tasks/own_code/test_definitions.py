"""Two texts define the same where they do the same, whatever is written around it."""

from __future__ import annotations

import pytest

from roundweave.tasks.own_code.code import TOP_LEVEL, definitions_of

MINE = """
import helper
from torch import nn as layers
WIDTH, depth = 4, 2
TABLE = {}
TABLE["x"] = 1
class Net:
    size: int = WIDTH
@helper.kept
def f(x):
    return x + helper.width
"""


def test_each_definition_has_its_name() -> None:
    names = {"helper", "layers", "WIDTH", "depth", "TABLE", TOP_LEVEL, "Net", "f"}
    found = definitions_of("mine", {"mine": MINE, "helper": "width = 3\nwidth += 1"})
    assert set(found) == names | {"helper.width", f"helper.{TOP_LEVEL}"}


@pytest.mark.parametrize(
    "other",
    [
        "# a comment\n" + MINE,
        MINE.replace("x + helper.width", "x  +  helper.width  # more"),
        MINE + "if __name__ == '__main__':\n    print(f(1))\n",
        '"""What it is."""\n' + MINE,
    ],
)
def test_comments_layout_and_what_a_script_does_do_not_count(other: str) -> None:
    assert definitions_of("mine", {"mine": other}) == definitions_of("mine", {"mine": MINE})


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("x + helper", "x - helper", "f"),
        ("@helper.kept", "@helper.lost", "f"),
        ("4, 2", "4, 3", "WIDTH"),
        ('["x"] = 1', '["x"] = 2', TOP_LEVEL),
        ("size: int", "size: float", "Net"),
        ("torch import nn", "torch import jit", "layers"),
    ],
)
def test_what_changes_is_named(old: str, new: str, name: str) -> None:
    mine, other = (definitions_of("mine", {"mine": text}) for text in (MINE, MINE.replace(old, new)))
    assert name in {key for key in mine if mine[key] != other[key]}
