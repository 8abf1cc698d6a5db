"""What the command takes to its first finished round and to its end, and which of its processes spends the time.

    python -m tests.benchmarks.speed.startup [--data mnist:DIR] [--times 3] [--rounds 8] [--cases new,inline]

Not a test: it asserts nothing. Seconds since the command was called, and CPU seconds of each process of its tree
until the first round was told and until the end: medians. The cases: no cached database, a new root, one that was
used before, a Prefect server that runs, and no Dask.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import typer
from rich.console import Console
from rich.table import Table

from tests.flows.prefect_server import PrefectServer, command_line

LOOK_SECONDS = 0.05
KINDS = {"api_server": "server", "spawn_main": "workers", "forkserver": "workers", "resource_tracker": "tracker"}
CASES = ("cold", "new", "old", "running", "inline")
COLUMNS = ("first round", "last round", "exit", "command", "server", "workers", "tracker", "all")

Numbers = dict[str, float]


def recipe(data: str, rounds: int) -> list[str]:
    """The options of the run: all of them written out, so that no default changes what is measured."""
    options = {"algorithm": "fed_avg", "model": "mlp", "data": data, "partitions": 10, "batch-size": 32}
    options |= {"local-epochs": 1, "lr": 0.1, "rounds": rounds, "workers": 2}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


class Watched:
    """A command with the CPU seconds of each process of its tree."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self.lines = folder / "lines"
        self.began = time.monotonic()
        with self.lines.open("wb") as lines:
            line = command_line("train", *arguments)
            self.process = subprocess.Popen(line, env=environment, stdout=lines, stderr=lines)
        self.spent: dict[int, tuple[str, float]] = {}

    def run(self) -> tuple[Numbers, Numbers]:
        """Seconds to what is told, and CPU seconds by kind of process until the first round, and in all."""
        told: Numbers = {}
        first: Numbers = {}
        while self.process.poll() is None:
            self.look()
            rounds = [line for line in self.lines.read_text().splitlines() if line.startswith("round ")]
            if rounds and not first:
                told["first round"], first = time.monotonic() - self.began, self.by_kind()
            if rounds and rounds[-1].split()[1].rstrip(":") in {f"{n}/{n}" for n in range(1, 1000)}:
                told.setdefault("last round", time.monotonic() - self.began)
            time.sleep(LOOK_SECONDS)
        told["exit"] = time.monotonic() - self.began
        if self.process.returncode:
            raise SystemExit(self.lines.read_text())
        return told | first, told | self.by_kind()

    def look(self) -> None:
        """Note what each process has spent."""
        with suppress(psutil.NoSuchProcess):
            above = psutil.Process(self.process.pid)
            for process in (above, *above.children(recursive=True)):
                with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    times, line = process.cpu_times(), " ".join(process.cmdline())
                    if line:  # one that has ended has none
                        kind = next((kind for word, kind in KINDS.items() if word in line), "command")
                        self.spent[process.pid] = kind, times.user + times.system

    def by_kind(self) -> Numbers:
        """CPU seconds by kind of process."""
        sums: Counter[str] = Counter()
        for kind, seconds in self.spent.values():
            sums[kind] += seconds  # type: ignore[assignment]
            sums["all"] += seconds  # type: ignore[assignment]
        return dict(sums)


def once(case: str, data: str, rounds: int, server: PrefectServer, folder: Path) -> tuple[Numbers, Numbers]:
    """One command of a case; those of the old root come after others."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    if case == "running":
        environment = server.environment | {"PREFECT_API_URL": server.api}
    with tempfile.TemporaryDirectory(dir=folder) as new:
        if case == "cold":
            environment["XDG_CACHE_HOME"] = new
        root = folder / "old" if case == "old" else Path(new)
        executor = "inline" if case == "inline" else "graph"
        options = [*recipe(data, rounds), "--root", str(root), "--executor", executor]
        return Watched(options, environment, folder).run()


def table(title: str, rows: Mapping[str, list[Numbers]]) -> Table:
    """Medians, a row a case."""
    made = Table("case", *COLUMNS, title=title)
    for case, runs in rows.items():
        cells = ([run[name] for run in runs if name in run] for name in COLUMNS)
        made.add_row(case, *(f"{statistics.median(cell):.2f}" if cell else "" for cell in cells))
    return made


def main(data: str = "digits", times: int = 3, rounds: int = 8, cases: str = ",".join(CASES)) -> None:
    """Print the tables; what is measured is in turn a case each, after a command that counts for nothing."""
    asked = cases.split(",")
    first: dict[str, list[Numbers]] = {case: [] for case in asked}
    whole: dict[str, list[Numbers]] = {case: [] for case in asked}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        server = PrefectServer(folder / "prefect")
        if "running" in asked:
            stack.callback(server.kill)
            server.start()
        for case in {"old", "new"} & {*asked}:
            once(case, "digits", 1, server, folder)
        for _ in range(times):
            for case in asked:
                until_first, until_end = once(case, data, rounds, server, folder)
                first[case].append(until_first)
                whole[case].append(until_end)
    console = Console(width=120)
    console.print(table(f"{data}: seconds, and CPU seconds until the first round", first))
    console.print(table(f"{data}: seconds, and CPU seconds until the end", whole))


if __name__ == "__main__":
    typer.run(main)
