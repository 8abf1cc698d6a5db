"""Faults put into the code one by one, drawn by a seed, and which of the two suites finds each.

``python -m tests.mutants`` draws 40, spread by lines over all folders, and says what each is; ``--run first`` or
``--run all`` gives each to a copy of the project and runs `make test`'s tests, or all but the slow ones, until one
fails: those of the same folder first. Another seed draws others; ``--only 3,17`` takes some of them.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOMS = ("flows", "tasks", "storage")
SUITES = {"first": "not slow and not thorough", "all": "not slow"}
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARED |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}


@dataclass(frozen=True)
class Mutant:
    """A fault: bytes of a file that become others."""

    file: str
    line: int
    start: int
    end: int
    text: str
    kind: str

    def applied(self, source: bytes) -> bytes:
        """The source with the fault in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def shown(self) -> str:
        """Where it is and what it does, in one line."""
        source = (HERE / self.file).read_bytes()
        before, after = (s.splitlines()[self.line - 1].decode() for s in (source, self.applied(source)))
        return f"{self.file}:{self.line} ({self.kind}) {before.strip()}  ->  {after.strip()}"


class Sites(ast.NodeVisitor):
    """All faults that can be put into a file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.found = file, source, list[Mutant]()
        self.begins = [0]
        for line in source.splitlines(keepends=True):
            self.begins.append(self.begins[-1] + len(line))
        self.visit(ast.parse(source))

    def place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The first byte of a node, and the one after its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = self.begins[node.lineno - 1], self.begins[node.end_lineno - 1]
        return start + node.col_offset, end + node.end_col_offset

    def add(self, start: int, end: int, text: str, kind: str) -> None:
        """Note one, by the line where it begins."""
        line = self.source[:start].count(b"\n") + 1
        self.found.append(Mutant(self.file, line, start, end, text, kind))

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> None:
        """An operator between two operands becomes another."""
        start, end = self.place(left)[1], self.place(right)[0]
        at = self.source.find(old.encode(), start, end)
        if at >= 0:
            self.add(at, at + len(old), new, kind)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            old = self.source[self.place(left)[1] : self.place(right)[0]].decode().strip(" ()\n")
            if old in COMPARED:
                self.between(left, right, old, COMPARED[old], f"comparison {type(operator).__name__}")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in SIGNS:
            self.between(node.left, node.right, *SIGNS[type(node.op)], "sign")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub) and not isinstance(node.operand, ast.Constant):
            self.add(self.place(node)[0], self.place(node.operand)[0], "", "sign")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self.add(*self.place(node.test), "False", "branch taken away")
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self.add(*self.place(node), str(node.value + 1), "off by one")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(*self.place(node), "pass", "call left out")
            self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        if all(item.optional_vars is None for item in node.items):
            self.add(self.place(node)[0], self.place(node.items[-1].context_expr)[1], "if True", "lock left out")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """What an error says is no fault of this kind."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Neither is what a message says."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *(each for each in node.kw_defaults if each)]:
            self.visit(default)


def draw(seed: int, count: int, under: str = "") -> list[Mutant]:
    """So many faults: the lines of all files in a row are cut in as many parts, and each part has one."""
    files = sorted(str(path.relative_to(HERE)) for room in ROOMS for path in (HERE / room).rglob("*.py"))
    files = [file for file in files if file.startswith(under)]
    sites = [mutant for file in files for mutant in Sites(file, (HERE / file).read_bytes()).found]
    before, total = dict[str, int](), 0
    for file in files:
        before[file] = total
        total += (HERE / file).read_bytes().count(b"\n")
    generator = random.Random(seed)
    parts: list[list[Mutant]] = [[] for _ in range(count)]
    for mutant in sites:
        parts[(before[mutant.file] + mutant.line - 1) * count // total].append(mutant)
    return [generator.choice(part) for part in parts if part]


def copy_project(folder: Path) -> Path:
    """The files that git knows of, and those that it does not ignore, in a folder of their own."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=HERE, text=True).splitlines():
        source, target = HERE / name, folder / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target, follow_symlinks=False)
    return folder


def mirrored(file: str) -> Iterator[str]:
    """Where the tests of a file lie: those of its name, of the next folder that has any, of refusals, then all."""
    test, folder = Path("tests", file).with_name(f"test_{Path(file).name}"), Path("tests", file).parent
    while not (HERE / folder).exists():
        folder = folder.parent
    yield from (str(path) for path in (test, folder, Path("tests/refusals")) if (HERE / path).exists())
    yield ""


def find(folder: Path, mutant: Mutant, suite: str, near: bool, processes: int) -> tuple[str | None, float]:
    """The test that finds a fault, or None if none does; and the seconds until then."""
    target, began = folder / mutant.file, time.monotonic()
    source = target.read_bytes()
    target.write_bytes(mutant.applied(source))
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-m", "pytest", "-x", "-m", SUITES[suite], "-p", "no:cacheprovider"]
    try:
        for tests in mirrored(mutant.file):
            if near and not tests:
                continue
            parallel = ["-n", str(processes), "--dist", "loadgroup"] if Path(tests).suffix != ".py" else []
            run = subprocess.run(
                [*line, *parallel, *([tests] if tests else [])],
                check=False,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            if run.returncode not in (0, 5):
                failed = [each for each in run.stdout.splitlines() if each.startswith(("FAILED", "ERROR"))]
                return (failed or [run.stdout[-300:]])[0], time.monotonic() - began
        return None, time.monotonic() - began
    finally:
        target.write_bytes(source)


def main() -> None:
    """Draw faults, show them, and try which are found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=62)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--under", default="", help="only files whose path begins so, such as tasks/data")
    parser.add_argument("--run", choices=SUITES)
    parser.add_argument("--near", action="store_true", help="run the tests of the fault's own folder alone")
    parser.add_argument("--only", type=lambda text: {int(each) for each in text.split(",")})
    parser.add_argument("--processes", type=int, default=3)
    asked = parser.parse_args()
    drawn = enumerate(draw(asked.seed, asked.count, asked.under), 1)
    chosen = [(number, mutant) for number, mutant in drawn if not asked.only or number in asked.only]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        if asked.run:
            copy_project(Path(folder))
        for number, mutant in chosen:
            print(f"{number:3} {mutant.shown()}", flush=True)
            if asked.run:
                by, seconds = find(Path(folder), mutant, asked.run, asked.near, asked.processes)
                print(f"    {seconds:5.0f} s  {by or 'NOT FOUND'}", flush=True)


if __name__ == "__main__":
    main()
