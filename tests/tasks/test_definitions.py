"""Which definitions a function uses: all that decide what it does, and as few others as can be."""

from __future__ import annotations

import pytest

from tasks.definitions import TOP_LEVEL, used_definitions


def used(source: str, name: str = "f", **beside: str) -> set[str]:
    return set(used_definitions("mine", name, {"mine": source, **beside}))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(): return 1\ndef g(): return 2", {"f"}),
        ("def f(): return g()\ndef g(): return h\nh = 3\ni = 4", {"f", "g", "h"}),
        ("class A: pass\nclass B(A): pass\nclass C(A): pass\ndef f(x: B): return x", {"f", "A", "B"}),
        ("import math, json\ndef f(): return math.pi", {"f", "math"}),
        ("def f(width=W): return width\nW = 4", {"f", "W"}),
        ("a, b = 1, 2\ndef f(): return b", {"f", "b"}),
        ('"""What it is."""\ndef f(): return 1', {"f"}),
        ("def f(): return 1\nif __name__ == '__main__':\n    print(f())", {"f"}),
        ("def f(): return f", {"f"}),
        ("def f(): return nowhere", {"f"}),
        ("async def f(): return g\ng: int = 1", {"f", "g"}),
    ],
)
def test_what_a_function_reaches(source: str, names: set[str]) -> None:
    assert used(source) == names


@pytest.mark.parametrize(
    "line",
    [
        "import torch; torch.manual_seed(g())",
        "TABLE = {}\nTABLE['g'] = g",
        "done = g()",
        "if True:\n    h = g",
        "for h in [g]: pass",
        "import functools\nTABLE = []\ndef keep(x): return TABLE.append(x) or x\n@keep\ndef i(): return g",
    ],
)
def test_what_a_module_always_runs_counts(line: str) -> None:
    """It may change what is used without being mentioned there."""
    assert "g" in used(f"def g(): return 1\n{line}\ndef f(): return 1")


def test_a_decorator_from_elsewhere_makes_nothing_known() -> None:
    source = "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\ndef f(): return 1"
    assert used(source) == {"f"}


@pytest.mark.parametrize("by", ["globals()['g']", "eval('g')", "__import__('sys')"])
def test_where_names_are_looked_up_by_their_text_all_count(by: str) -> None:
    assert "g" in used(f"def f(): return {by}\ndef g(): return 1")


@pytest.mark.parametrize(
    "source",
    [
        "import helper\ndef f(): return helper.a",
        "import helper as h\ndef f(): return h.a",
        "from helper import a\ndef f(): return a",
        "from helper import a as b\ndef f(): return b",
        "from .helper import a\ndef f(): return a",
        "from . import helper\ndef f(): return helper.a",
        "def f():\n    from helper import a\n    return a",
        "import other\ndef f(): return other.a",
    ],
)
def test_of_a_module_beside_it_what_is_reached_there(source: str) -> None:
    beside = {"helper": "a = B\nB = 1\nc = 2", "other": "from helper import a"}
    assert {name for name in used(source, **beside) if name.startswith("helper")} == {"helper.a", "helper.B"}


def test_a_module_that_is_handed_on_counts_whole_as_does_a_starred_one() -> None:
    beside = {"helper": "a = 1\nb = 2"}
    for source in ("import helper\ndef f(): return dir(helper)", "from helper import *\ndef f(): return a"):
        assert used(source, **beside) == {"f", "helper.a", "helper.b"}


def test_what_a_module_beside_it_always_runs_counts_even_if_nothing_of_it_is_used() -> None:
    assert used("import helper\ndef f(): return 1", helper="import x\nx.y = 1\nz = 2") == {
        "f",
        "helper.x",
        f"helper.{TOP_LEVEL}",
    }


def test_modules_may_import_one_another() -> None:
    assert used("import one\ndef f(): return one.a", one="import two\na = two.b", two="import one\nb = 1") == {
        *("f", "one.a", "two.b")
    }


def test_digests_are_those_of_the_text_and_of_decorators() -> None:
    sources = ["def f():\n    return 1", "def f():\n    return 2", "import g\n@g.h\ndef f():\n    return 1"]
    found = [used_definitions("mine", "f", {"mine": source})["f"] for source in sources]
    assert len(set(found)) == 3
    assert used_definitions("mine", "f", {"mine": "\n\n" + sources[0] + "\nx = 1"})["f"] == found[0]
