"""How fast `roundweave verify` reads: its speed as a share of that of `sha256sum` on the same files.

    python -m tests.benchmarks.speed.verify [--repeats 5]

Not a test: it asserts nothing. The files are in memory; both are run by turns, the share is that of the medians.
`sha256sum` is one process with all names. The small run is of the size of the FedAvg recipe on MNIST, a network of
199,210 parameters on 10 partitions; the large one has 50 MB of parameters on 4 partitions.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import typer

from roundweave.storage.upkeep.verifying.verify import verify
from tests.benchmarks.rounds import medians, seconds, show
from tests.benchmarks.speed.written import written

MLP = {"1.weight": (200, 784), "1.bias": (200,), "3.weight": (200, 200), "3.bias": (200,), "5.weight": (10, 200)}
LARGE = {f"{layer}.weight": (1250, 1000) for layer in range(10)}


def compared(path: Path, repeats: int) -> list[float]:
    """The seconds of `verify` and of `sha256sum`, medians of so many turns; the first warms the cache."""
    line = ["sha256sum", *(str(file) for file in sorted(path.rglob("*")) if file.is_file())]
    ways = (lambda: verify(path), lambda: subprocess.run(line, check=True, capture_output=True))
    turns = [[seconds(way) for way in ways] for _ in range(repeats + 1)]
    return medians(turns[1:])


def main(repeats: int = 5) -> None:
    """Print the table."""
    lines = []
    with tempfile.TemporaryDirectory() as root:
        runs = {"MNIST recipe": (MLP, 10, 50), "50 MB parameters": (LARGE, 4, 4)}
        for name, (shapes, partitions, rounds) in runs.items():
            path = written(Path(root, f"{partitions}.zarr"), shapes, partitions, rounds)
            seen = verify(path)
            assert seen.sound
            ours, theirs = compared(path, repeats)
            megabytes = seen.bytes / 1e6
            speeds = f"{megabytes / ours:.0f}", f"{megabytes / theirs:.0f}"
            lines.append((name, str(seen.files), f"{megabytes:.0f}", *speeds, f"{theirs / ours:.2f}"))
    show(("run", "files", "MB", "verify, MB/s", "sha256sum, MB/s", "share of its speed"), lines)


if __name__ == "__main__":
    typer.run(main)
