"""What a merge of two large folders takes of memory and time, beside reading and writing the same files.

``python -m tests.benchmarks.large_folders FOLDER [bfloat16] [--match weights] [--times 3]`` writes two folders of
4 GB there, and the merged one, and removes them at the end. Both ways are timed alternately, by the clock and in
seconds of a processor, which other work on the machine changes less; each ends when its files are on the disk.
What the command takes to start is the time in which it merges two folders of one layer of 64 units.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from transformers import LlamaConfig, LlamaForCausalLM

from roundweave.storage.checkpoints.folders import write_json, write_shards
from roundweave.storage.values.lazy import LazyTensors
from roundweave.storage.values.tensors import TensorSpec

SIZES = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4}
TINY = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 32, "num_key_value_heads": 4}
LAYERS = {"float32": 20, "bfloat16": 44}
BLOCK = 1 << 24

MERGE = """
import resource, sys
from roundweave.flows.command.app import main
try:
    main()
finally:
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            print(int(line.split()[1]) * 1024)
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def write(folder: Path, seed: int, sizes: dict[str, int], layers: int, dtype: str) -> None:
    """A folder of a Llama with grouped heads and random weights."""
    generator = torch.Generator().manual_seed(seed)
    config = LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=32000, dtype=dtype)
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    specs = tuple(TensorSpec(name, dtype, shape) for name, shape in shapes.items())

    def read(name: str) -> torch.Tensor:
        values = torch.empty(shapes[name], dtype=getattr(torch, dtype))
        return values.uniform_(-0.05, 0.05, generator=generator)

    folder.mkdir(parents=True)
    write_json(
        folder / "config.json", json.loads(config.to_json_string()) | {"architectures": ["LlamaForCausalLM"]}
    )
    write_shards(folder, LazyTensors(tuple(shapes), read, specs), 2 * 10**9)


def copied(first: Path, second: Path, to: Path) -> None:
    """Read two folders, and write the first of them, a block at a time."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    block = bytearray(BLOCK)
    for path in sorted(first.glob("*.safetensors")):
        one, two, out = path.open("rb", 0), (second / path.name).open("rb", 0), (to / path.name).open("wb")
        with one, two, out:
            while count := one.readinto(block):
                out.write(memoryview(block)[:count])
                two.readinto(block)
            out.flush()
            os.fsync(out.fileno())


def merged(folder: Path, *more: str) -> int:
    """The largest memory, in bytes, of a process that merges two folders by the command."""
    (folder / "merge.py").write_text(MERGE)
    given = [f"{folder}/a", f"{folder}/b", "--out", f"{folder}/merged", "--force", "--executor", "inline", *more]
    line = [sys.executable, str(folder / "merge.py"), "merge", *given, "--root", f"{folder}/runs"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return max(map(int, done.stdout.split()[-2:]))


def timed(do: Callable[[], Any]) -> tuple[float, float, Any]:
    """The seconds by the clock and those of processors, here and in processes begun here, and what is returned."""
    clock, before = time.perf_counter(), sum(os.times()[:4])
    value = do()
    return time.perf_counter() - clock, sum(os.times()[:4]) - before, value


def main(
    folder: Path,
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Argument()] = "float32",
    match: Literal["none", "weights"] = "none",
    times: int = 3,
) -> None:
    """Measure, and print a line for each time."""
    try:
        for seed, name in enumerate("ab"):
            write(folder / name, seed, SIZES, LAYERS[dtype], dtype)
            write(folder / "tiny" / name, seed, TINY, 1, dtype)
        for _ in range(times):
            plain, own, _ = timed(lambda: copied(folder / "a", folder / "b", folder / "copied"))
            start, begun, _ = timed(lambda: merged(folder / "tiny", "--match", match))
            seconds, taken, memory = timed(lambda: merged(folder, "--match", match))
            print(f"read and written {plain:.1f} s ({own:.1f} s of a processor),", end=" ")
            print(f"merged {seconds:.1f} s ({taken:.1f} s), {memory / 1e9:.2f} GB,", end=" ")
            print(f"of which the start {start:.1f} s ({begun:.1f} s)", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
