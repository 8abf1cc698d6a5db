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
import resource, sys
from roundweave.flows.command.app import main

try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.fixture
def peak(tmp_path):
    """The largest memory, in bytes, of a process that merges two networks of a kind, and the bytes of one."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "merge.py").write_text(MERGE)
    functions: dict[str, object] = {}
    exec(MINE, functions)

    def run(kind: str) -> tuple[int, int]:
        for number, suffix in enumerate((".pt", ".safetensors")):
            network: nn.Module = functions[kind]()
            torch.manual_seed(number)
            for parameter in network.parameters():
                nn.init.normal_(parameter, std=0.05)
            write_checkpoint(tmp_path / f"{kind}{number}{suffix}", network.state_dict())
        files = [
            str(tmp_path / f"{kind}{number}{suffix}") for number, suffix in enumerate((".pt", ".safetensors"))
        ]
        given = ["--model", f"{tmp_path}/mine.py:{kind}", "--input", "2x16", "--root", str(tmp_path / "runs")]
        given += ["--executor", "inline", "--out", f"{tmp_path}/{kind}.safetensors"]
        line = [sys.executable, str(tmp_path / "merge.py"), "merge", *files, *given]
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1]), (tmp_path / f"{kind}0.pt").stat().st_size

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
