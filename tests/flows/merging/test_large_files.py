"""What a merge of large files takes of memory and of the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
CHAIN = ["--model", f"{mine.__file__}:chain", "--input", "2x16"]


def peak(folder: Path, width: int, suffixes: tuple[str, str], how: list[str]) -> tuple[int, int]:
    """The largest memory, in bytes, of a process that merges two networks of a width, and the bytes of one."""
    files = [f"{folder}/{width}-{number}{suffix}" for number, suffix in enumerate(suffixes)]
    for file in files:
        write_checkpoint(file, mine.chain(width).state_dict())
    given = ["--root", f"{folder}/runs", "--out", f"{folder}/{width}.safetensors", "--executor", "inline"]
    line = [sys.executable, "-c", MERGE, "merge", *files, *given, *how]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]), Path(files[0]).stat().st_size


@pytest.mark.slow
def test_a_merge_takes_at_most_twice_a_file_and_leaves_one(tmp_path) -> None:
    (least, _), (most, size) = (
        peak(tmp_path, width, (".pt", ".safetensors"), [*CHAIN, "--model-options", f'{{"width": {width}}}'])
        for width in (16, 1536)
    )
    assert size > 100_000_000
    assert most - least <= 2 * size, f"{(most - least) / size:.2f} times a file"
    assert (tmp_path / "1536.safetensors").exists()
    assert not [path for path in (tmp_path / "runs").glob("*") if path.suffix == ".zarr" or "merge" in path.name]


@pytest.mark.slow
def test_a_merge_of_names_takes_the_memory_of_some_blocks(tmp_path) -> None:
    both = (".safetensors", ".safetensors")
    (least, _), (most, size) = (peak(tmp_path, width, both, ["--match", "none"]) for width in (16, 1536))
    assert most - least <= 0.1 * size, f"{(most - least) / size:.2f} times a file"
