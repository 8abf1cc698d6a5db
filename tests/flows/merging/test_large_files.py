"""What a merge of large files takes of memory and of the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from roundweave.storage.checkpoints.writing import write_checkpoint

MINE = """
from itertools import pairwise
from torch import nn

def model(width, depth):
    sizes = [16, *[width] * depth, 4]
    return nn.Sequential(*[m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())])

def small():
    return model(16, 12)

def large():
    return model(1536, 12)
"""

MERGE = """
from roundweave.flows.command.app import main

try:
    main()
finally:
    # What getrusage tells is at least the memory of the process that began this one.
    print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.fixture
def peak(tmp_path):
    """The largest memory, in bytes, of a process that merges two networks of a kind, and the bytes of one."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "merge.py").write_text(MERGE)
    functions: dict[str, object] = {}
    exec(MINE, functions)

    def run(kind: str, suffixes: tuple[str, str] = (".pt", ".safetensors"), match: str = "") -> tuple[int, int]:
        for number, suffix in enumerate(suffixes):
            network: nn.Module = functions[kind]()
            torch.manual_seed(number)
            for parameter in network.parameters():
                nn.init.normal_(parameter, std=0.05)
            write_checkpoint(tmp_path / f"{kind}{number}{suffix}", network.state_dict())
        files = [str(tmp_path / f"{kind}{number}{suffix}") for number, suffix in enumerate(suffixes)]
        how = ["--match", match] if match else ["--model", f"{tmp_path}/mine.py:{kind}", "--input", "2x16"]
        given = ["--root", str(tmp_path / "runs"), "--out", f"{tmp_path}/{kind}.safetensors", *how]
        given += ["--executor", "inline"]
        line = [sys.executable, str(tmp_path / "merge.py"), "merge", *files, *given]
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
