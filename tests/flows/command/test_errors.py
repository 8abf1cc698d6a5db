"""Ctrl-C: one line, whenever and however often it comes, and nothing of the command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from roundweave.flows.stored import open_run
from tests.flows.command.in_process import WITHOUT_PREFECT
from tests.flows.prefect_server import command_line, rounds_done, until
from tests.patience import PATIENCE

LOST = """
import os, signal, sys, time, weakref
from roundweave.flows.command import errors

errors.SECONDS = 0.5
watched = set()
callback = weakref.ref(watched, lambda _: os.kill(os.getpid(), signal.SIGINT) or sum(range(1000)))
with errors.ended_by_interrupts(lambda: print("interrupted", file=sys.stderr)):
    del watched
    time.sleep(60)
"""


@pytest.mark.parametrize("body", ["del watched", "import slow"])
def test_an_interrupt_in_a_callback_or_an_import_is_one_line_all_the_same(tmp_path, body: str) -> None:
    """Python swallows the one, and the other ends once the module is imported: C++ would abort the process."""
    (tmp_path / "slow.py").write_text("import os; os.kill(os.getpid(), 2); print('whole', flush=True)")
    line = [sys.executable, "-c", LOST.replace("del watched", body)]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (1, "interrupted\n", "whole\n" * (body != "del watched"))


@pytest.fixture(scope="module", autouse=True)
def _one_server() -> None:
    """None: these tests have processes of their own."""


@pytest.mark.parametrize(
    "seconds",
    # After 1.5 s torch is being imported, which takes the longest.
    [1.5, *(pytest.param(seconds, marks=pytest.mark.thorough) for seconds in (0.1, 0.3, 0.6, 1, 2, 3))],
)
def test_an_interrupt_in_a_terminal_while_all_is_imported_is_at_most_one_line(tmp_path, seconds: float) -> None:
    """A terminal sends it to all processes of the command, which has begun one that imports for its workers."""
    line = [Path(sys.executable).parent / "roundweave", "train", "--rounds", "1000"]
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen(line, cwd=tmp_path, **told) as process:
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
    lines = [line for line in said.decode().splitlines() if not line.startswith("round ")]
    if lines and lines[0].startswith("Fatal Python error: init_"):  # Python had not begun to run anything of ours
        return
    assert [line.split(";")[0] for line in lines] in ([], ["error: interrupted"])
    assert process.returncode in (1, -signal.SIGINT)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.thorough
def test_an_interrupt_is_one_line(tmp_path: Path, trained: bool, times: int) -> None:
    """While the cluster starts, and while rounds are trained."""
    runs, told = tmp_path / "runs", tmp_path / "errors"
    line = command_line("train", "--workers", "1", "--rounds", "1000", "--name", "run")
    with told.open("wb") as errors:
        process = subprocess.Popen(line, env=WITHOUT_PREFECT, stdout=errors, stderr=errors, cwd=tmp_path)
    begun = (lambda: rounds_done(runs / "run.zarr") > 2) if trained else (runs / ".prefect").is_dir
    until(lambda: begun() or process.poll() is not None, told)
    family = psutil.Process(process.pid).children(recursive=True)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)  # two at once would be one
    code = process.wait(60)
    said = [line for line in told.read_text().splitlines() if not line.startswith("round ")]
    kept = "committed rounds are kept; `roundweave resume run` continues"
    kept = kept if (runs / "run.zarr").exists() else "no run had begun, so nothing was stored"
    assert (code, said) == (1, [f"error: interrupted; {kept}"])
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
    if trained:
        assert open_run(runs / "run.zarr").status == "interrupted"
