"""What the command begins before it has read its options, and what is left of that where they are refused."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from roundweave.flows.command.app import main
from roundweave.storage.runs.names import give_alias
from tests.flows.command.in_process import WITHOUT_PREFECT, refused, run
from tests.flows.prefect_server import command_line, until


@pytest.fixture(scope="module", autouse=True)
def _one_server() -> None:
    """None: these commands have processes of their own."""


def processes(mark: str) -> list[int]:
    """Those that have inherited a mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("MARK") == mark:
                found.append(process.pid)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["train", "--nonsense"], ["merge", "nowhere@1"]])
def test_a_refused_command_leaves_no_process_and_no_file(tmp_path: Path, words: list[str]) -> None:
    mark = secrets.token_hex(8)
    env = WITHOUT_PREFECT | {"MARK": mark, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command_line(*words), cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    until(lambda: not processes(mark))
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_that_of_the_package(capsys) -> None:
    assert run(capsys, "--version")[:2] == (0, f"roundweave {version('roundweave')}\n")


@pytest.mark.parametrize(
    ("words", "complete"),
    [("roundweave train --partition-", "--partition-options"), ("roundweave rec", "recombine")],
)
def test_a_shell_completes_subcommands_and_their_options(capsys, monkeypatch, words: str, complete: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_ROUNDWEAVE_COMPLETE": "complete_bash"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert run(capsys)[1].split() == [complete]


@pytest.mark.parametrize(
    ("words", "twice"),
    [
        ("train --plugins a.py:A --rounds 2 --plugins b.py:B", "--plugins"),
        ("train --scores accuracy --scores=top5", "--scores"),
    ],
)
def test_a_list_that_is_given_twice_is_refused(capsys, words: str, twice: str) -> None:
    said = (2, f"{twice} is given twice; give it once, a list with commas")
    assert refused(capsys, *words.split()) == said


@pytest.mark.thorough
def test_an_output_that_nobody_reads_on_ends_the_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command_line("list", "--json"), stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


IMPORTED = """
import sys
import roundweave
try:
    roundweave.main()
finally:
    print(*sys.modules)
"""
HEAVY = {"pandas", "matplotlib", "prefect", "distributed", "roundweave.flows.plugins.race.choosing"}


@pytest.mark.thorough
@pytest.mark.parametrize("words", ["list", "plan --help"])
def test_what_names_things_does_not_import_what_runs_them(words: str) -> None:
    line = [sys.executable, "-c", IMPORTED, *words.split()]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "roundweave.flows.terminal.options" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        ("train --algorithm fed_p", ["fed_prox"]),
        ("train --split sh", ["shards"]),
        ("train --executor in", ["inline"]),
        ("train --reduce kr", ["krum"]),
        ("train --data cs", ["csv"]),
        ("show fir", ["first"]),
        ("diff first sec", ["second"]),
        ("show cha", ["champion"]),
    ],
)
def test_a_shell_completes_names_and_values(monkeypatch, tmp_path, capsys, words: str, begun: list[str]) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.zarr").mkdir()
    give_alias(tmp_path, "champion", "first", "")
    monkeypatch.setenv("ROUNDWEAVE_ROOT", str(tmp_path))
    monkeypatch.setenv("_ROUNDWEAVE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"roundweave {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    monkeypatch.setattr("sys.argv", ["roundweave"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == begun
