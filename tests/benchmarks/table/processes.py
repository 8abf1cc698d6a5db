"""One contender as a process, and its readings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.benchmarks.peers.recipes import BEGAN
from tests.benchmarks.table.environments import ROOT, python_of
from tests.benchmarks.table.errors import NoReading
from tests.benchmarks.table.rows.base import Contender

LONGEST_SECONDS = 900
"""A process that takes longer is ended, with those that it started."""

SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Nothing is reported to anybody."""

Readings = dict[str, float]


def read(contender: Contender, examples: Path, environments: Path) -> Readings:
    """Run it once. Raises `NoReading` where it cannot be installed, fails, or takes too long."""
    python = python_of(contender.environment, environments)
    began = time.time()
    process = subprocess.Popen(
        [str(python), "-m", contender.module, str(examples), *contender.arguments],
        cwd=ROOT,
        env={**os.environ, **SILENT, "PYTHONPATH": str(ROOT), BEGAN: str(began)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        raise NoReading(f"took more than {LONGEST_SECONDS} s") from None
    finally:
        _end(process)
    return {"exit": time.time() - began, **_readings(process.returncode, out, err)}


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _readings(code: int, out: str, err: str) -> Readings:
    if code:
        raise NoReading((err.strip().splitlines() or [f"ended with {code}"])[-1])
    told = [line for line in out.splitlines() if line.startswith("{")]
    if not told:
        raise NoReading("told nothing")
    return json.loads(told[-1])
