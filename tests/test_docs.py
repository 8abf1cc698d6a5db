"""What README.md and docs/ show runs as it stands, and what they name exists.

The blocks of a page run in their order in one new folder. A block whose first line is a comment with a path is
written to that file:
``# mine.py`` beside the page's commands, ``# tasks/…`` and ``# tests/…`` into a copy of the project;
``# tasks/….py, in NAME`` adds lines to the table NAME there, ``before NAME`` puts them ahead of it, or of the
function NAME. Any other Python block is run as a script. Of shell blocks each line is run: `roundweave` in this
process, `pytest` in the copy, and of `make` the lines of its target that begin with `roundweave`; after
``<!-- run by bash -->`` bash runs the whole block. What another test runs says so:
``<!-- covered by tests/FILE.py::TEST -->``. Blocks without a language are pictures and output; after
``<!-- printed -->`` each line must have been printed since the last such block: its words, numbers up to a
fiftieth, since other processors compute other bits, and anything in place of ``…`` and after a word that ends in
``…``. Blocks in braces, such as ``{note}``, are for the site. Pages that say `SLOW` in their first line are run by
make test-slow.
"""

from __future__ import annotations

import logging
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from roundweave.flows.command import app
from roundweave.flows.reporting.progress import FlowPage
from roundweave.flows.serving.server import prefect_api, stop_server

HERE = Path(__file__).parent.parent
REFERENCE = HERE / "docs/reference"
MADE = {"_build", "tutorials"}
"""Folders of what the site's build makes, or runs as notebooks."""


def is_generated(target: Path) -> bool:
    """Whether the site's build makes a page, from the code; the index of the reference lists such pages."""
    listed = {*(REFERENCE / "index.md").read_text(encoding="utf-8").split()} - {"glossary"}
    return target.is_relative_to(REFERENCE / "generated") or (target.parent == REFERENCE and target.stem in listed)


DOCS = sorted((HERE / "docs").rglob("*.md"))
FOUND = (page for page in DOCS if not MADE & {*page.parts} and not is_generated(page))
PAGES = [HERE / "README.md", HERE / "CONTRIBUTING.md", *FOUND]
FENCED = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```([{}\w-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml|yml))(?:, (in|before) (\w+))?\n")
SLOW = "<!-- run by make test-slow -->"
"""The first line of a page whose commands take long: they are many, or have clusters and servers of their own."""
NUMBER = re.compile(r"-?\d+(\.\d+)?")
PROJECT = ("flows", "tasks", "storage", "tests")
PATH = re.compile(r"(?<![\w/.:-])(?:flows|tasks|storage|tests|docs|roundweave|notebooks)/[\w./-]*(?<![.-])")
SHARED = ("conftest", "counting", "patience", "runs", "times", "training")
"""The modules of the tests that a test in the copy needs."""

USERS = ("mine.py",)
"""The files of a user of which pages tell."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `note` is the comment on the line before it."""

    note: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; those in braces are for the site."""
    found = [Block(*found.groups(default="")) for found in FENCED.finditer(page.read_text(encoding="utf-8"))]
    return [block for block in found if not block.language.startswith("{")]


def is_slow(page: Path) -> bool:
    return page.read_text(encoding="utf-8").startswith(SLOW)


def name_of(page: Path) -> str:
    return "/".join(page.relative_to(HERE).with_suffix("").parts).removeprefix("docs/")


@pytest.fixture(scope="module")
def root_of_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root whose Prefect server serves the pages that have one."""
    root = tmp_path_factory.mktemp("runs")
    yield root
    stop_server(root)


@pytest.fixture
def _prefect(page: Path, without_prefect, request: pytest.FixtureRequest) -> Iterator[None]:
    """A Prefect server for README.md and the slow pages; on the others flows are plain functions."""
    has_one = page.stem == "README" or is_slow(page)
    with prefect_api(request.getfixturevalue("root_of_server")) if has_one else nullcontext():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page's blocks run: a new folder, runs beneath it, nothing of Prefect's and Dask's own messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROUNDWEAVE_ROOT")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    logging.disable()
    yield tmp_path
    logging.disable(logging.NOTSET)


def mark_of(page: Path) -> pytest.MarkDecorator:
    """The second suite runs all pages but the slow ones; the first has each command and function by itself."""
    return pytest.mark.slow if is_slow(page) else pytest.mark.thorough


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of mlflow's own queries
@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page), marks=mark_of(page)) for page in PAGES])
@pytest.mark.usefixtures("_prefect")
def test_what_a_page_shows_runs(page: Path, folder: Path, client, capfd, monkeypatch) -> None:
    monkeypatch.setattr(FlowPage, "leave_plot", lambda page, figure, kind: None)  # nobody looks at it
    if not is_slow(page):  # how long strategies race is seen where the page of plans is run
        monkeypatch.setattr("roundweave.flows.plugins.race.choosing.HEAT", 0.1)
    for number, block in enumerate(blocks(page)):
        if block.note == "printed":
            assert_printed(block.text, "".join(capfd.readouterr()))
        elif block.note.startswith("covered by "):
            assert_covered(block.note.removeprefix("covered by "))
        else:
            with client.as_current():  # a run's own cluster takes a second to start
                run_block(block, folder, f"block{number}.py")


def run_block(block: Block, folder: Path, script: str) -> None:
    file = FILE.match(block.text)
    match block.language:
        case "python" | "toml" | "yaml" if file:
            write(block.text, folder, *file.groups(default=""))
        case "python":
            (folder / script).write_text(block.text)
            run_line(f"python {script}", folder)
        case "sh" if block.note == "run by bash":
            run_bash(block.text, folder)
        case "sh":
            for line in block.text.splitlines():
                run_line(line, folder)
        case other:
            assert other == "", f"what is to be done with {block}?"


def write(text: str, folder: Path, name: str, how: str, table: str) -> None:
    """Write a block to its file; what belongs to the project goes into a copy of it."""
    file = (project(folder) if name.startswith(PROJECT) else folder) / name
    if how:
        text = with_lines(file.read_text(), text.partition("\n")[2], how, table)
    else:
        assert not file.exists(), f"{name} exists"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def project(folder: Path) -> Path:
    """A copy of the project without its tests."""
    copy = folder / "project"
    if not copy.exists():
        for package in ("flows", "tasks", "storage", "roundweave"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(HERE / package, copy / package, symlinks=True, ignore=ignored)
        (copy / "tests").mkdir()
        for name in ("pyproject.toml", *(f"tests/{each}.py" for each in SHARED)):
            shutil.copy(HERE / name, copy / name)
    return copy


def with_lines(source: str, lines: str, how: str, name: str) -> str:
    """Source with further lines at the end of a table, or before it or a function; imports go to the others."""
    imports = "".join(re.findall(r"^from \S+ import .*\n", lines, re.MULTILINE))
    lines = lines.removeprefix(imports).lstrip("\n")
    head, start, tail = re.split(rf"^((?:def )?{name}\b)", source, maxsplit=1, flags=re.MULTILINE)
    if how == "in":
        body, end, rest = re.split(r"^( {4}\)|\})$", tail, maxsplit=1, flags=re.MULTILINE)
        added = f"{head}{start}{body}{lines}{end}{rest}"
    else:
        added = f"{head}{lines}\n\n{start}{tail}"
    return added.replace("\nfrom roundweave", f"\n{imports}from roundweave", 1)


def run_line(line: str, folder: Path) -> None:
    """Run one line of a shell block."""
    words = shlex.split(line, comments=True)
    match words:
        case []:
            return
        case ["roundweave", *arguments]:
            assert command(arguments) == 0, line
        case [assignment, "roundweave", *arguments] if "=" in assignment:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(*assignment.split("=", 1))
                assert command(arguments) == 0, line
        case ["python", script]:
            runpy.run_path(str(folder / script), run_name="__main__")
        case ["pytest", *arguments]:
            # In a folder of its own: in the common one it would first delete what other sessions left there.
            line = [sys.executable, "-m", "pytest", f"--basetemp={folder}/pytest", *arguments]
            subprocess.run(line, cwd=project(folder), check=True)
        case ["make", target]:
            recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", (HERE / "Makefile").read_text(), re.MULTILINE)
            assert recipe, line
            for begun in re.findall(r"^\t\$\(BIN\)/(roundweave .*)$", recipe[1], re.MULTILINE):
                run_line(begun, folder)
        case _:
            pytest.fail(f"nothing runs {line!r}; say in a comment before its block what does")


def command(arguments: list[str]) -> int:
    """The exit code of `roundweave`, in this process."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["roundweave", *arguments])
        app.main()
    return int(ended.value.code or 0)


def run_bash(text: str, folder: Path) -> None:
    """Run a block as it is, and end what it leaves running."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs, "PYTHONPATH": str(HERE)}
    line = ["bash", "-ec", text]
    with subprocess.Popen(line, cwd=folder, env=environment, start_new_session=True) as process:
        try:
            assert process.wait(120) == 0, text
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def assert_printed(shown: str, printed: str) -> None:
    lines = [line.split() for line in printed.splitlines()]
    for line in shown.splitlines():
        assert any(are_alike(line.split(), words) for words in lines), f"{line!r} is not printed, but:\n{printed}"


def are_alike(shown: list[str], words: list[str]) -> bool:
    return len(shown) == len(words) and all(map(is_alike, shown, words))


def is_alike(shown: str, word: str) -> bool:
    """Whether a word is as shown, its number up to a fiftieth."""
    if shown.endswith("…"):
        return word.startswith(shown[:-1])
    plain = [text.strip("%,").replace(",", "") for text in (shown, word)]
    if shown == word or not all(NUMBER.fullmatch(text) for text in plain):
        return shown == word
    return float(plain[0]) == pytest.approx(float(plain[1]), rel=0.02, abs=0.0002)


def test_what_is_printed_is_compared() -> None:
    assert_printed("kept 1,000 of … 2.00%", "more\nkept 1,010 of\tabc 1.99%\n")
    assert_printed("run ab…", "run abc\n")
    for other in ("kept 1,030 of abc 2.00%", "kept 1,000 of 2.00%", "held 1,000 of abc 2.00%"):
        with pytest.raises(AssertionError):
            assert_printed("kept 1,000 of … 2.00%", other)


def assert_covered(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (HERE / file).read_text(), f"there is no {test}"


@pytest.mark.parametrize("page", [*PAGES, HERE / "CHANGELOG.md"], ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for link, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        target = (page.parent / link if link else page).resolve()
        if is_generated(target):  # the build of the site checks what it has made
            continue
        assert target.exists(), f"{page.name} links to {link}"
        if heading:
            headings = re.findall(r"^#+ (.*)$", FENCED.sub("", target.read_text(encoding="utf-8")), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}, link


@pytest.mark.parametrize("page", [*PAGES, HERE / "CHANGELOG.md"], ids=name_of)
def test_the_paths_of_a_page_exist(page: Path) -> None:
    """In its text, pictures and blocks, but for what its own blocks write; a file alone is one of the project."""
    text = page.read_text(encoding="utf-8")
    written = {found[1] for block in blocks(page) if (found := FILE.match(block.text))}
    assert {path for path in PATH.findall(text) if not (HERE / path).exists()} <= written
    files = {file.name for folder in PROJECT for file in (HERE / folder).rglob("*.py")} | {*USERS, *written}
    assert {*re.findall(r"`(\w+\.py)`", text)} <= files


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Its tutorials run, and every link and anchor leads somewhere."""
    words = re.search(r"\$\(BIN\)/sphinx-build (.*) docs docs/_build/html", (HERE / "Makefile").read_text())
    assert words
    build = [sys.executable, "-m", "sphinx", *words[1].split(), "docs", str(tmp_path)]
    done = subprocess.run(build, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]


def test_the_readme_is_short() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
