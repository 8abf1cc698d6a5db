"""Fourteen nights, of a minute each, that a schedule fires by itself from the file of the page on champions.

Its server is its own, as it goes away for two nights.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

import roundweave as rw
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.runs.names import alias_history, run_address
from tests.flows.prefect_server import PrefectServer, command_line, ended, listener
from tests.test_docs import HERE, blocks

BIN = Path(sys.executable).parent

NIGHTS = "good, good, missing, corrupt, one class, new column, new category, same again, arrives late, killed, "
NIGHTS = (NIGHTS + "server away, server away, asleep, good").split(", ")
"""What befalls each night."""

CHANGED = {"{date}": "{date:%H%M}", "rounds = 10": "rounds = 60", '"14d"': '"6m"', '"10m"': "10", '"2h"': "50"}
"""What is shorter, or longer, in these nights than in the page's file."""

GOOD, FAILED, REJECTED = ("complete", {"completed"}), ("none", {"failed"}), ("rejected", {"rejected"})
ENDS = {"good": GOOD, "server away": GOOD, "asleep": GOOD, "missing": FAILED, "corrupt": FAILED}
ENDS |= dict.fromkeys(("one class", "new column", "new category"), REJECTED)
ENDS |= {"same again": ("none", set()), "killed": ("interrupted", set())}
ENDS |= {"arrives late": ("complete", {"completed", "failed"})}
"""What the store says of a run afterwards, and the events that a webhook was told."""


def table(seed: int) -> pd.DataFrame:
    """Examples of three classes of flowers, by a rule that stays from day to day."""
    drawn = np.random.default_rng(seed)
    inputs = drawn.standard_normal((600, 4))
    scores = inputs @ np.random.default_rng(0).standard_normal((4, 3)) + drawn.normal(0, 0.3, (600, 3))
    return pd.DataFrame(inputs, columns=[*"abcd"]).assign(
        label=np.array(["iris", "lily", "rose"])[scores.argmax(1)]
    )


def written(kind: str, number: int, place: Path) -> None:
    """Write the file of a night, as it comes from elsewhere; that of the night before the third is sent again."""
    content = table(1 if kind == "same again" else number)
    if kind == "one class":
        content = content.assign(label="rose")
    elif kind == "new column":
        content.insert(0, "petals", content["a"] ** 2)
    elif kind == "new category":
        content.loc[:60, "label"] = "tulip"
    text = content.to_csv(index=False)
    place.write_text(text[: len(text) // 2] + '"\x00,,,' if kind == "corrupt" else text)


@dataclass
class Way:
    """One way to train night after night: its folder, and the process that begins its trainings."""

    name: str
    folder: Path
    process: psutil.Process | None = None

    @property
    def root(self) -> Path:
        return self.folder / "runs"

    def trainings(self) -> list[psutil.Process]:
        """The processes that train, or are about to."""
        return self.process.children(recursive=True)

    def signal(self, number: int) -> None:
        """Send all processes a signal, as the machine does to all."""
        for process in (self.process, *self.trainings()):
            process.send_signal(number)


@dataclass
class Fortnight:
    """The nights of all ways, by what is due when, and what a webhook was told."""

    server: PrefectServer
    posted: list[Any]
    ways: list[Way]
    due: list[datetime] = field(default_factory=list)

    def called(self, number: int) -> str:
        return f"{self.due[number]:%H%M}"

    def begin(self) -> None:
        """Write what is there before the schedule begins, which is at the next minute but one."""
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        self.due = [now + timedelta(minutes=2 + number) for number in range(len(NIGHTS))]
        [page] = [b.text for b in blocks(HERE / "docs/how-to/champion.md") if b.text.startswith("# nights.toml")]
        for given, taken in CHANGED.items():
            assert given in page
            page = page.replace(given, taken)
        for way in self.ways:
            (way.folder / "days").mkdir(parents=True)
            (way.folder / "nights.toml").write_text(page + 'timezone = "UTC"\n')
            table(999).to_csv(way.folder / "validation.csv", index=False)
            for number, kind in enumerate(NIGHTS):
                if kind not in ("missing", "arrives late"):
                    self.deliver(way, number)

    def wait(self, number: int, seconds: float = 0.0) -> None:
        """Wait until a night is due, and so many seconds more."""
        time.sleep(max(0.0, self.due[number].timestamp() + seconds - time.time()))

    def go_through(self) -> None:
        """Do to each night what befalls it."""
        for number, kind in enumerate(NIGHTS):
            if kind == "server away" and NIGHTS[number - 1] != kind:
                self.wait(number, -20)  # before Prefect begins its process, 10 s ahead
                self.server.kill()
                self.wait(number + 1, 20)
                self.server.start()
            for begin, act in DEEDS.get(kind, ()):
                self.wait(number, begin)
                for way in self.ways:
                    act(self, way, number)
        self.wait(len(NIGHTS) - 1, 55)

    def deliver(self, way: Way, number: int) -> None:
        """Write the file of a night."""
        written(NIGHTS[number], number, way.folder / f"days/{self.called(number)}.csv")

    def kill(self, way: Way, number: int) -> None:
        """Kill what trains a night once two rounds are committed."""
        while not (Path(run_address(way.root, f"night-{self.called(number)}")) / "commits/2.json").exists():
            assert time.time() < self.due[number].timestamp() + 59, "the night to kill has not begun"
            time.sleep(0.002)
        for process in way.trainings():
            process.kill()

    def told(self, way: Way, number: int) -> set[str]:
        """The events of a night that the webhook was told."""
        name = f"night-{self.called(number)}"
        mine = (each for each in self.posted if each["facts"]["root"] == str(way.root))
        return {each["event"].rpartition(".")[2] for each in mine if each["facts"]["run"] == name}


DEEDS: dict[str, list[tuple[float, Callable[[Fortnight, Way, int], None]]]] = {
    "arrives late": [(5, Fortnight.deliver)],
    "killed": [(0, Fortnight.kill)],
    "asleep": [
        (-5, lambda _, way, __: way.signal(signal.SIGSTOP)),
        (30, lambda _, way, __: way.signal(signal.SIGCONT)),
    ],
}
"""By what befalls a night: so many seconds after it is due, what is done to each way."""


@contextmanager
def fortnight(folder: Path) -> Iterator[Fortnight]:
    """A server, a webhook, and both ways to train, ready for the first night, by what a user types."""
    polls = {"PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_WORKER_QUERY_SECONDS": "1", "COLUMNS": "200"}
    [recipe] = [b.text for b in blocks(HERE / "docs/how-to/schedule.md") if "CallWebhook" in b.text]
    often = ["--cron", "* * * * *", "--name"]
    with ExitStack() as stack:
        hook, posted = stack.enter_context(listener())
        served, pool = ways = [Way(name, folder / name) for name in ("served", "pool")]
        nights = Fortnight(PrefectServer(folder / "prefect").start(), posted, ways)
        stack.callback(nights.server.kill)
        nights.begin()
        own = nights.server.environment | polls | {"PREFECT_API_URL": nights.server.api}
        own |= {"PREFECT_API_ENABLE_HTTP2": "false"}
        for line in (
            [sys.executable, "-c", recipe.replace("https://example.org/nights", f"{hook}/")],
            [BIN / "prefect", "work-pool", "create", "machines", "--type", "process"],
            command_line("deploy", "nights.toml", "--work-pool", "machines", *often, "pool"),
        ):
            subprocess.run([str(word) for word in line], env=own, cwd=pool.folder, check=True, capture_output=True)
        for way, line in (
            (pool, [BIN / "prefect", "worker", "start", "--pool", "machines"]),
            (served, command_line("serve", "nights.toml", *often, "served")),
        ):
            process = stack.enter_context(ended([*line], own, way.folder / "log", cwd=way.folder))
            way.process = psutil.Process(process.pid)
        yield nights


def check_champions(way: Way) -> None:
    """The champion never became worse on the validation data, and each that is left replays from its record."""
    champions = [entry.run for entry in alias_history(way.root, "champion")]
    assert len({*champions}) == len(champions) >= 5
    left = {name: rw.open_run(name, way.root) for name in champions if Path(run_address(way.root, name)).exists()}
    assert champions[-1] in left
    for run in left.values():
        before, after = run.round(0).score, run.round(-1).score
        if run.parent:
            assert after.values["validation_loss"] <= before.values["validation_loss"]
        assert run.replay("all").identical


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fourteen_nights_of_one_file(tmp_path: Path) -> None:
    with fortnight(tmp_path) as nights:
        nights.go_through()
        told = [{way.name: nights.told(way, number) for way in nights.ways} for number in range(len(NIGHTS))]
    for way in nights.ways:
        runs = looked_through(str(way.root))
        for number, kind in enumerate(NIGHTS):
            status, events = ENDS[kind]
            assert told[number][way.name] - {"degraded"} == events, (way.name, number)
            name = f"night-{nights.called(number)}"
            assert number < len(NIGHTS) - 6 or (runs[name].status if name in runs else "none") == status, name
        stored = [path.stem for path in way.root.glob("night-*.zarr")]
        assert len(stored) <= 9, f"{way.name}: older nights are not removed: {sorted(stored)}"
        check_champions(way)
