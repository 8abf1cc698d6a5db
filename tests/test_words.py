"""The glossary: each concept has one word, and words that another has replaced are gone from code and docs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
FILES = [
    *(file for room in ("flows", "tasks", "storage") for file in (HERE / room).rglob("*.py")),
    *HERE.glob("roundweave/*.py*"),
    *(HERE / "docs").glob("*.md"),
    HERE / "README.md",
]

INSTEAD = {
    "ranks, a process group": r"gangs?|Gang\w*|Seat|Board",
    "tensor parallel": r"teamed|Teamed|in_team|as_team",
    "column, row": r"_Into|_Out",
    "parameter server, push": r"intakes?|landings?|served_by",
    "persistence, recompute": r"\w+_and_keep|keep_state|keep_merge|remade|remaking|keeping_state",
    "timing, straggler": r"pace|paces|Pace|Hangs|tell_pace",
    "result": r"verdicts?|Verdicts?|VERDICTS",
    "quarantine": r"set_aside|put_aside|set aside|put aside",
    "options of parts": r"extending|build_of|Teamed",
}
"""The words in use, and what they have replaced."""


@pytest.mark.parametrize("word", INSTEAD)
def test_words_that_were_replaced_are_gone(word: str) -> None:
    retired = re.compile(rf"\b(?:{INSTEAD[word]})\b")
    used = {
        f"{file.relative_to(HERE)}:{number}: {line.strip()}"
        for file in FILES
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if retired.search(line)
    }
    assert not used, f"say {word} instead"


def test_no_two_public_classes_or_functions_share_a_name() -> None:
    """Each name stands for one thing, but for those that a user types: both tables have a `linear`."""
    defined = [
        node.name
        for room in ("flows", "tasks", "storage")
        for file in (HERE / room).rglob("*.py")
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert {name for name in defined if defined.count(name) > 1} == {"linear", "main"}


def test_no_more_than_two_modules_share_a_name() -> None:
    """A stranger guesses the file from the feature: of a name that several modules have, each says its room."""
    common = {"__init__", "table", "base", "mapper", "inline", "unofficial"}
    names = [file.stem for room in ("flows", "tasks", "storage") for file in (HERE / room).rglob("*.py")]
    assert not {name for name in names if names.count(name) > 2} - common
