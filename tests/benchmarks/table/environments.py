"""A virtual environment for each peer that needs packages of its own, outside the checkout."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from tests.benchmarks.table.errors import NoReading

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "tests" / "benchmarks" / "peers"
SHARING = ("blazefl", "flower", "pfl")
"""These find what they lack, such as torch, in the project's own environment."""

UNTESTED = ("blazefl",)
"""These say that they need a later Python than the project's, but run on it."""

PACKAGES = Path(torch.__file__).parents[1]
"""Where that has its packages."""


def python_of(environment: str | None, folder: Path) -> Path:
    """The interpreter of an environment, which is made where there is none with these requirements.

    Raises `NoReading` where pip cannot install them.
    """
    if environment is None:
        return Path(sys.executable)
    requirements = PEERS / environment / "requirements.txt"
    decides = f"{sys.version} {PACKAGES if environment in SHARING else ''} {requirements.read_text()}"
    made = folder / f"{environment}-{hashlib.sha256(decides.encode()).hexdigest()[:8]}"
    ready = made / "ready"
    if not ready.exists():
        shutil.rmtree(made, ignore_errors=True)  # what an interrupted installation left
        _install(environment, made, requirements)
        ready.touch()
    return made / "bin" / "python"


def _install(environment: str, made: Path, requirements: Path) -> None:
    python = made / "bin" / "python"
    _called(environment, sys.executable, "-m", "venv", str(made))
    # What is listed is complete, or lacks what the project's own environment has.
    options = ("--quiet", "--no-deps", *(("--ignore-requires-python",) if environment in UNTESTED else ()))
    _called(environment, str(python), "-m", "pip", "install", *options, "--requirement", str(requirements))
    if environment in SHARING:
        packages = next(made.glob("lib/python*/site-packages"))
        (packages / "project.pth").write_text(f"{PACKAGES}\n")


def _called(environment: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise NoReading(f"{environment} cannot be installed: {said[-1]}")
