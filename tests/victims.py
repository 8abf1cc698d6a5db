"""A Dask cluster and the command as processes of their own, of which each can be killed and begun again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from roundweave.storage.places.schemes import place_of
from tests.flows.prefect_server import command_line, until
from tests.patience import PATIENCE
from tests.workers import worker_processes


def start(line: list[str], folder: Path, **more: str) -> subprocess.Popen[bytes]:
    """Begin a process that leads a group of its own, and writes to `log` in the folder."""
    with (folder / "log").open("ab") as log:
        options = {"cwd": folder, "env": os.environ | more, "start_new_session": True}
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process alone, not those that it has started."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that it has started, and those have."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


class Cluster:
    """A Dask scheduler, and two nannies with a worker each: five processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.nannies: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Begin what is not there."""
        place = ["--scheduler-file", str(self.file), "--no-dashboard"]
        dask = [sys.executable, "-m", "dask"]
        if self.scheduler is None or self.scheduler.poll() is not None:
            self.end()  # workers of a scheduler that is gone know no other
            self.file.unlink(missing_ok=True)
            self.scheduler = start([*dask, "scheduler", "--port", "0", "--host", "127.0.0.1", *place], self.folder)
            until(lambda: self.file.exists() and self.file.stat().st_size > 0, self.folder / "log")
        self.nannies = [nanny for nanny in self.nannies if nanny.poll() is None]
        while len(self.nannies) < 2:
            self.nannies.append(start([*dask, "worker", "--nthreads", "1", *place], self.folder))

    def end(self) -> None:
        """Kill all of it."""
        for process in (self.scheduler, *self.nannies):
            if process is not None:
                for child in descendants(process):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
                kill(process)
        self.nannies = []

    def workers(self) -> list[psutil.Process]:
        """The worker processes that are there now."""
        return [child for nanny in self.nannies for child in descendants(nanny) if "spawn_main" in _words(child)]

    def holders(self) -> list[psutil.Process]:
        """The workers that hold states of a parameter server, the newest one's last."""
        with Client(scheduler_file=str(self.file), set_as_default=False, timeout=PATIENCE) as client:
            held = client.run_on_scheduler(_holders)
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(pid) for pid in held]
        return []


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _holders(dask_scheduler: Any) -> list[int]:
    """Runs on the scheduler: who holds what the server's tasks gave, or is at one, by the rounds' numbers."""
    tasks = sorted((key[2], task) for key, task in dask_scheduler.tasks.items() if key[0] == "serve")
    return [each.pid for _, task in tasks for each in (task.processing_on, *(task.who_has or ())) if each]


class Training:
    """A run that a command trains or goes on with, on a cluster or by itself, while its processes are killed.

    `victims` has a method by each name of what is killed.
    """

    def __init__(self, folder: Path, root: str, name: str, options: list[str], cluster: Cluster | None) -> None:
        self.folder, self.root, self.name, self.options, self.cluster = folder, root, name, options, cluster
        self.place = place_of(f"{root}/{name}.zarr")
        self.victims: dict[str, Callable[[], None]] = {
            "command": lambda: kill(self.process),
            "worker": self.kill_worker,
            "nanny": lambda: kill(self.cluster.nannies[0]),
            "scheduler": lambda: kill(self.cluster.scheduler),
            "holder": self.kill_holder,
            "prefect": self.kill_prefect,
        }
        self._done = -1
        self.left: list[psutil.Process] = []
        self.process = self.go_on()

    def go_on(self) -> subprocess.Popen[bytes]:
        """Begin the command: `train`, or `resume` once there is a run."""
        where = [] if self.cluster is None else ["--scheduler", str(self.cluster.file)]
        kept = ("--executor", "--keep", "--rounds", "--target-accuracy", "--patience", "--evaluate-every")
        pairs = zip(self.options, self.options[1:], strict=False)
        execution = [word for pair in pairs if pair[0] in kept for word in pair]
        there = self.place.has("commits/0.json")
        words = ["resume", self.name, *execution] if there else ["train", *self.options, "--name", self.name]
        self.process = start(command_line(*words, *where), self.folder, ROUNDWEAVE_ROOT=self.root)
        return self.process

    def done(self) -> int:
        """How many rounds are committed; -1 where there is no run."""
        while self.place.has(f"commits/{self._done + 1}.json"):
            self._done += 1
        return self._done

    def wait_for(self, round: int) -> bool:
        """Wait until this round is committed; False if the command has ended before."""
        deadline = time.monotonic() + PATIENCE
        while self.done() < round:
            if self.process.poll() is not None:
                return self.done() >= round
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.01)
        return True

    def writer(self, round: int) -> str:
        """The token of the writer that committed a round."""
        return json.loads(bytes(self.place.read(f"commits/{round}.json")))["token"]

    def wait_for_another(self, round: int) -> bool:
        """Wait until another writer than that of this round commits; False where the end comes before."""
        later = round + 1
        while self.wait_for(later):
            if self.writer(later) != self.writer(round):
                return True
            later += 1
        return False

    def kill_worker(self) -> None:
        """The last one: of a named cluster or of the command's own, also a rank."""

        def there() -> list[psutil.Process]:
            if self.cluster is not None:
                return self.cluster.workers()
            return worker_processes(psutil.Process(self.process.pid)) if self.process.poll() is None else []

        self._kill_one(there)

    def kill_holder(self) -> None:
        """The worker that has the parameter server's newest state."""
        self._kill_one(self.cluster.holders)

    def kill_prefect(self) -> None:
        """The command's own Prefect server."""
        self._kill_one(lambda: [child for child in descendants(self.process) if "api_server" in _words(child)])

    def _kill_one(self, those: Callable[[], list[psutil.Process]]) -> None:
        """Kill the last of some processes, once there are any; none where the command has ended by itself."""
        found: list[psutil.Process] = []
        while not found and self.process.poll() is None:
            found = those()
            time.sleep(0.02)
        for process in found[-1:]:
            process.kill()

    def kill(self, who: str) -> None:
        """Kill one by its name, and begin what nobody else begins again."""
        if who in ("command", "nanny"):
            self.left += descendants(self.process if who == "command" else self.cluster.nannies[0])
        self.victims[who]()
        if who == "scheduler":
            self.process.wait(120)  # it ends by itself, with a line
        if self.cluster is not None:
            self.cluster.begin()
        if self.process.poll():
            self.go_on()
