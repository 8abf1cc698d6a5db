"""What the command begins before it has read its options, and what is left of that where they are refused."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from flows.command.app import COMMANDS, FLOWS
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


@pytest.mark.parametrize("words", [["train", "--nonsense"], ["train", "--lr", "much"], ["merge", "nowhere@1"]])
def test_a_refused_command_leaves_no_process_and_no_file(tmp_path: Path, words: list[str]) -> None:
    mark = secrets.token_hex(8)
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    environment = own | {"MARK": mark, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    line = command_line(*words)
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    until(lambda: not processes(mark))
    assert list(tmp_path.iterdir()) == []


def test_what_is_a_flow_is_a_command() -> None:
    assert set(FLOWS) <= set(COMMANDS)
