"""Several machines on one: each has its own network, processes, name and view of the folders.

    with Network(tmp_path) as network:
        head = network.machine("head")
        berlin = network.machine("berlin", hides=[runs, sites], mounts={data: sites / "berlin"})
        berlin.run(["ping", "-c1", "head"])

A machine is a set of Linux namespaces without a name, held by a process. Its interface is joined to a bridge in a
network namespace without a name, so nothing is known outside, and nothing is left when the processes are gone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal

import psutil
import pytest

from tests.patience import PATIENCE

HERE = Path(__file__).resolve().parent.parent
"""The folder of the project, whose code runs on all machines."""

SETTLE_SECONDS = 10
"""How long a process may take to end after it was told to."""

BRIDGE = """
ip link add name bridge type bridge mcast_snooping 0
ip link set dev bridge addrgenmode none
ip link set dev bridge up
"""
"""Without queries and addresses of IPv6: nothing is sent but by what runs on the machines."""

TRIAL = f"""
{BRIDGE}
ip link add name port type veth peer name eth0
ip link set dev port master bridge
tc qdisc replace dev port root tbf rate 1mbit burst 16kb latency 100ms
tc qdisc replace dev eth0 root blackhole
"""
"""What the kernel must be able to do."""

HOLD = """
ip link set dev lo up
echo ready
cat > /dev/null
exit
"""
"""Ends the script of a process that holds namespaces: it reaps orphans, and ends with the process that made it."""

APART = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""The namespaces of each holder; no mount is seen outside, as `unshare` makes all of them private."""


@cache
def _why_no_machines() -> str:
    """What is missing for machines here; empty if nothing is."""
    tools = [tool for tool in ("env", "ip", "nsenter", "setsid", "ss", "tc", "unshare") if not shutil.which(tool)]
    if tools or os.geteuid():
        return f"needs {', '.join(tools)}" if tools else "needs root"
    tried = subprocess.run(["unshare", *APART, "sh", "-ec", TRIAL], check=False, capture_output=True, text=True)
    return f"the system refuses: {tried.stderr.strip()}" if tried.returncode else ""


class Network:
    """A bridge to which machines are joined: 10.47.0.1, 10.47.0.2 and so on; they know each other by name.

    Logs, and a folder for each machine in which its commands run, are made in `folder`. Where the system has no
    namespaces the test is skipped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines: list[Machine] = []

    def __enter__(self) -> Network:
        if reason := _why_no_machines():
            pytest.skip(f"no machines of namespaces: {reason}")
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.holder = _held(BRIDGE)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End all processes of all machines, with which their namespaces and interfaces go."""
        for started in (started for machine in self.machines for started in machine.started):
            started.kill()
        for holder in (*(machine.holder for machine in self.machines), self.holder):
            _release(holder)

    def machine(self, name: str, hides: Sequence[Path] = (), mounts: Mapping[Path, Path] | None = None) -> Machine:
        """Make a machine, and join it. A name has at most 15 characters, and is not `bridge`.

        Folders that it `hides` are empty there. `mounts` has a folder to show for the path at which it shows it,
        such as one of those that are hidden; both exist, and that path is in no folder that is hidden.
        """
        machine = Machine(self, name, len(self.machines) + 1, hides, mounts or {})
        self.machines.append(machine)
        machine.join()
        return machine

    def switch(self, line: str) -> None:
        """Do an `ip` or `tc` command at the bridge, whose ports have the names of the machines."""
        _checked(["nsenter", f"--target={self.holder.pid}", "--net", *line.split()])


class Machine:
    """A machine of a `Network`, at `address`; its processes see no other's."""

    def __init__(
        self, network: Network, name: str, number: int, hides: Sequence[Path], mounts: Mapping[Path, Path]
    ) -> None:
        self.network, self.name, self.address = network, name, f"10.47.0.{number}"
        self.folder = network.folder / name
        self.folder.mkdir()
        self.started: list[Started] = []
        with network.hosts.open("a") as hosts:
            hosts.write(f"{self.address} {name}\n")
        # First what is shown, since it may lie in a folder that is hidden.
        shown = [("-t", "tmpfs", "tmpfs", "/dev/shm"), ("--bind", network.hosts, "/etc/hosts")]
        shown += [("--bind", mounts[at], at) for at in mounts]
        hidden = [("-t", "tmpfs", "tmpfs", folder) for folder in hides]
        lines = [shlex.join(map(str, ("mount", *words))) for words in (*shown, *hidden)]
        self.holder = _held("\n".join([*lines, f"hostname {name}"]))
        processes = f"--pid=/proc/{self.holder.pid}/ns/pid_for_children"
        self.enter = ["nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--uts", processes, "setsid"]
        self.enter += ["env", f"--chdir={self.folder}", f"PYTHONPATH={HERE}", "PYTHONUNBUFFERED=1"]
        self.enter += [f"DASK_TEMPORARY_DIRECTORY={self.folder}"]

    def join(self) -> None:
        """Plug the machine in. Packets are as large as on a wire, and are counted as such."""
        self.network.switch(f"ip link add name {self.name} type veth peer name eth0 netns {self.holder.pid}")
        self.network.switch(f"ip link set dev {self.name} addrgenmode none")
        self.network.switch(f"ip link set dev {self.name} gso_max_segs 1 master bridge up")
        self._within("ip link set dev eth0 addrgenmode none")
        self._within("ip link set dev eth0 gso_max_segs 1 up")
        self._within(f"ip address add {self.address}/24 dev eth0")

    def run(self, command: Sequence[str], seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; one that takes longer is killed, and `TimeoutExpired` raised."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([*self.enter, *command], text=True, **pipes) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except BaseException:
                _signal_group(process, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def start(self, command: Sequence[str], log: str) -> Started:
        """Begin a command; what it prints is appended to a file of this name in the network's folder."""
        file = self.network.folder / log
        with file.open("ab") as output:
            line = [*self.enter, *command]
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.started.append(Started(process, file))
        return self.started[-1]

    def cut(self) -> None:
        """Unplug the machine: the others do not hear it, it does not hear them, and nobody is told."""
        self.network.switch(f"ip link set dev {self.name} down")

    def cut_one_way(self, direction: Literal["out", "in"] = "out") -> None:
        """Lose what the machine sends, or what is sent to it."""
        lose = "root blackhole"
        if direction == "out":
            self._within(f"tc qdisc replace dev eth0 {lose}")
        else:
            self.network.switch(f"tc qdisc replace dev {self.name} {lose}")

    def mend(self) -> None:
        """Undo each cut."""
        self.network.switch(f"ip link set dev {self.name} up")
        self._within("tc qdisc replace dev eth0 root pfifo")
        self.network.switch(f"tc qdisc replace dev {self.name} root pfifo")

    def sent(self) -> int:
        """The bytes that the machine's interface has sent, headers included."""
        return self._counters()[8]

    def received(self) -> int:
        """The bytes that the machine's interface has received, headers included."""
        return self._counters()[0]

    def _counters(self) -> list[int]:
        lines = Path(f"/proc/{self.holder.pid}/net/dev").read_text().splitlines()
        (line,) = [line for line in lines if line.strip().startswith("eth0:")]
        return [int(word) for word in line.split(":")[1].split()]

    def _within(self, line: str) -> None:
        _checked(["nsenter", f"--target={self.holder.pid}", "--net", *line.split()])


class Started:
    """A process on a machine that leads a group of its own, and the file to which it prints."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self.process, self.file = process, file

    def log(self) -> str:
        """What was printed until now."""
        return self.file.read_text()

    def until(self, text: str, seconds: float = PATIENCE, times: int = 1) -> str:
        """Wait until the log has a text so many times, and give the log; fails with it otherwise."""
        deadline = time.monotonic() + seconds
        while self.log().count(text) < times:
            ended = self.process.poll()
            if self.log().count(text) < times:
                assert ended is None, f"ended with {ended} before it said {text!r}:\n{self.log()}"
                assert time.monotonic() < deadline, f"never said {text!r}:\n{self.log()}"
            time.sleep(0.05)
        return self.log()

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code when the process has ended; fails with its log after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        pytest.fail(f"it has not ended:\n{self.log()}")

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, such as SIGSTOP and SIGCONT."""
        _signal_group(self.process, number)

    def kill(self) -> None:
        """SIGKILL the whole group, as a machine that loses its power."""
        self.signal(signal.SIGKILL)
        while self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # it stops where its command was stopped
            time.sleep(0.01)

    def end(self, seconds: float = PATIENCE) -> int:
        """Press Ctrl-C; gives the exit code."""
        self.signal(signal.SIGINT)
        return self.wait(seconds)


def hidden_from(folder: Path, command: Sequence[str], size: str = "50%") -> list[str]:
    """The command line of a process that runs a command and sees a folder empty, with so much room; else it skips.

    Unlike a machine it shares all else with the test, and needs no root.
    """
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system mounts no file system for a process of its own")
    script = f'mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(folder))} && exec "$@"'
    return ["unshare", "-rm", "sh", "-c", script, "sh", *command]


def roundweave(*arguments: object) -> list[str]:
    """The command line of `roundweave` in this tree."""
    code = "import roundweave; roundweave.main()"
    return [sys.executable, "-P", "-c", code, *map(str, arguments)]


def _held(script: str) -> subprocess.Popen[str]:
    """A process that holds namespaces of its own, in which a script was done."""
    line = ["unshare", *APART, "sh", "-ec", f"{script}\n{HOLD}"]
    pipe = subprocess.PIPE
    holder = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert holder.stdout is not None
    if holder.stdout.readline() != "ready\n":
        _, told = holder.communicate()
        raise OSError(f"no namespaces were made: {told.strip()}")
    return holder


def _release(holder: subprocess.Popen[str]) -> None:
    """End a process that holds namespaces, and all processes in them."""
    try:
        holder.communicate(timeout=SETTLE_SECONDS)  # closes its input
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.communicate()


def _signal_group(nsenter: subprocess.Popen[bytes] | subprocess.Popen[str], number: int) -> None:
    """Signal the group of a command, whose leader is the child of `nsenter`.

    That stops when its child does, goes on and makes it go on, and ends with its exit code or signal.
    """
    while nsenter.poll() is None:
        with suppress(psutil.NoSuchProcess, ProcessLookupError, IndexError):  # it has not begun yet
            os.killpg(psutil.Process(nsenter.pid).children()[0].pid, number)
            if number != signal.SIGSTOP:
                nsenter.send_signal(signal.SIGCONT)
            return
        time.sleep(0.01)


def _checked(line: list[str]) -> None:
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{shlex.join(line)}: {done.stderr.strip()}")
