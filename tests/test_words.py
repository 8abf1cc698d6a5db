"""The glossary: each concept has one word, and words that another has replaced are gone from code and docs."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
TESTS = [file for file in (HERE / "tests").rglob("*.py") if "benchmarks" not in file.parts]
FILES = [
    *(file for room in ("flows", "tasks", "storage") for file in (HERE / room).rglob("*.py")),
    *HERE.glob("roundweave/*.py*"),
    *(HERE / "docs").glob("*.md"),
    HERE / "README.md",
    *(file for file in TESTS if file != Path(__file__).resolve()),
]

INSTEAD = {
    "a process group, or ranks": r"(?<!-)[Tt]eams?|TEAM\w*|[Tt]eamed|\w+_teams?(?:_\w+)?|teams?_\w+|in_turn",
    "a communicator": r"Line|line: \w*(?:Communicator|Group)|over (?:a|the) line",
    "a push, an exchange or a heat": (
        r"(?:an?|its|each|every|this|first|second|last|later|many|ten) turns?|turns? (?:\d|in range|may)|turns?\["
    ),
    "stacked replicas and their batches": r"courses|phases?|Courses?|Phases?",
    "persistence, or what stays": r"keeping|KEEPING|keeping_\w+|\w+_keeping",
    "shares": r"InShares",
    "arrived, or a push": r"landed|landings?|intakes?",
    "a result": r"verdicts?|Verdicts?",
    "quarantine": r"(?:set|put) aside",
}
"""The words in use, and what they have replaced."""


@cache
def read(file: Path) -> str:
    return file.read_text("utf-8")


@pytest.mark.parametrize("word", INSTEAD)
def test_words_that_were_replaced_are_gone(word: str) -> None:
    retired = re.compile(rf"\b(?:{INSTEAD[word]})\b")
    used = {f"{file.relative_to(HERE)}: {found[0]}" for file in FILES for found in retired.finditer(read(file))}
    assert not used, f"say {word} instead"


def test_no_more_than_two_modules_share_a_name() -> None:
    """A stranger guesses the file from the feature: of a name that several modules have, each says its room."""
    common = {"__init__", "table", "base", "mapper", "inline", "unofficial", "plugin"}
    names = [file.stem for room in ("flows", "tasks", "storage") for file in (HERE / room).rglob("*.py")]
    assert not {name for name in names if names.count(name) > 2} - common


def test_a_test_file_mirrors_a_module_or_says_its_law() -> None:
    """Its name and place are a module's, or its first line is a sentence, and its name no other test file's.

    Contracts have the names of interfaces, in a folder of their own.
    """
    files = [file.relative_to(HERE / "tests") for file in TESTS if file.name.startswith("test_")]
    files = [file for file in files if file.parts[0] != "contracts"]
    laws = [file for file in files if not (HERE / file.with_name(file.name.removeprefix("test_"))).exists()]
    for file in laws:
        first, *_ = (ast.get_docstring(ast.parse((HERE / "tests" / file).read_text("utf-8"))) or "").splitlines()
        assert len(first) > 30, f"{file} has the name of no module beside it, and does not say its law"
        assert first.endswith("."), f"{file} does not say its law in one line"
    assert not {file for file in laws if [other.name for other in files].count(file.name) > 1}
