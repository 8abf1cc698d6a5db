"""What a merge of large files takes of memory and of the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from roundweave.storage.checkpoints.writing import write_checkpoint
from tests.tasks.merging import mine

MERGE = """
from roundweave.flows.command.app import main

try:
    main()
finally:
    # What getrusage tells is at least the memory of the process that began this one.
    print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
SIZES = {"small": 16, "large": 1536}


@pytest.fixture
def peak(tmp_path):
    """The largest memory, in bytes, of a process that merges two networks of a size, and the bytes of one."""
    (tmp_path / "merge.py").write_text(MERGE)

    def run(size: str, suffixes: tuple[str, str] = (".pt", ".safetensors"), match: str = "") -> tuple[int, int]:
        files = [f"{tmp_path}/{size}{number}{suffix}" for number, suffix in enumerate(suffixes)]
        for seed, file in enumerate(files):
            torch.manual_seed(seed)
            write_checkpoint(file, mine.chain(SIZES[size]).state_dict())
        how = ["--match", match] if match else ["--model", f"{mine.__file__}:chain", "--input", "2x16"]
        how += [] if match else ["--model-options", json.dumps({"width": SIZES[size]})]
        given = ["--root", f"{tmp_path}/runs", "--out", f"{tmp_path}/{size}.safetensors", "--executor", "inline"]
        line = [sys.executable, f"{tmp_path}/merge.py", "merge", *files, *given, *how]
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1]), Path(files[0]).stat().st_size

    return run


@pytest.mark.slow
def test_a_merge_takes_at_most_twice_a_file_and_leaves_one(peak, tmp_path) -> None:
    least, _ = peak("small")
    most, size = peak("large")
    assert size > 100_000_000
    assert most - least <= 2 * size, f"{(most - least) / size:.2f} times a file"
    made = {path.name for path in tmp_path.iterdir()}
    assert {"large.safetensors", "small.safetensors"} <= made
    assert not [path for path in (tmp_path / "runs").glob("*") if path.suffix == ".zarr" or "merge" in path.name]


@pytest.mark.slow
def test_a_merge_of_names_takes_the_memory_of_some_blocks(peak) -> None:
    both = (".safetensors", ".safetensors")
    least, _ = peak("small", both, "none")
    most, size = peak("large", both, "none")
    assert most - least <= 0.1 * size, f"{(most - least) / size:.2f} times a file"
