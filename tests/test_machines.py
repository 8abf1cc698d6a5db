"""Machines of namespaces are as machines are: apart in files, processes and networks, and gone without a trace."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from roundweave.tasks.data.sources.table import find_source
from tests.machines import Machine, Network, hidden_from
from tests.sites import images_at_sites

pytestmark = pytest.mark.thorough  # the machines are tools of tests, which fail in their own words where these lie

SIZE = 1 << 20
"""How many bytes a transfer has: many packets."""

SERVER = """
import socket
listening = socket.create_server(("0.0.0.0", 9000))
print("ready")
while True:
    connection, _ = listening.accept()
    with connection:
        size = 0
        while received := connection.recv(1 << 16):
            size += len(received)
        connection.sendall(str(size).encode())
"""
CLIENT = f"""
import socket, sys
with socket.create_connection((sys.argv[1], 9000), timeout=float(sys.argv[2])) as connection:
    connection.sendall(bytes({SIZE}))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(100) == b"{SIZE}"
"""
"""Sends to a machine, and ends well once that says that all is there."""


def sends(machine: Machine, to: str, seconds: float = 20) -> bool:
    """Whether a transfer comes to its end in so many seconds."""
    return not machine.run([sys.executable, "-S", "-c", CLIENT, to, str(seconds)]).returncode


def serve(machine: Machine) -> None:
    machine.start([sys.executable, "-S", "-c", SERVER], "server.log").until("ready")


def test_machines_reach_each_other_by_name_but_for_what_is_cut(network) -> None:
    berlin, paris, rome = (network.machine(name) for name in ("berlin", "paris", "rome"))
    assert (rome.address, paris.run(["hostname"]).stdout) == ("10.47.0.3", "paris\n")
    serve(paris)
    assert sends(berlin, "paris")
    assert not sends(berlin, "rome")  # nothing listens there
    cuts: list[tuple[Callable[[], None], list[bool]]] = [
        (paris.cut, [True, False, False, False]),
        (lambda: paris.cut_one_way("in"), [True, False, False, False]),
        (paris.cut_one_way, [True, True, False, False]),  # it hears the question, and its answer is lost
    ]
    for cut, wanted in cuts:
        counts = (berlin.sent, paris.received, paris.sent, berlin.received)
        cut()
        before = [count() for count in counts]
        while time.sleep(0.2) or before != (before := [count() for count in counts]):
            pass  # the end of the transfer before may still be told
        assert not sends(berlin, "paris", 0.5)
        assert [count() > early for count, early in zip(counts, before, strict=True)] == wanted
        paris.mend()
        assert sends(berlin, "paris")


def test_bytes_are_counted_as_on_a_wire(network) -> None:
    """A packet of 1514 bytes carries 1448, so that 4.6 % come on top."""
    berlin, paris = network.machine("berlin"), network.machine("paris")
    serve(paris)
    assert sends(berlin, "paris")
    for count in (berlin.sent(), paris.received()):
        assert count == pytest.approx(SIZE * 1514 / 1448, rel=0.02)
    for count in (berlin.received(), paris.sent()):
        assert count < SIZE / 10


def test_a_machine_sees_its_own_folders_alone(network, tmp_path) -> None:
    sites, data, runs = (tmp_path / name for name in ("sites", "data", "runs"))
    for folder in (sites / "berlin", sites / "paris", data, runs):
        folder.mkdir(parents=True)
    for name in ("berlin", "paris"):
        (sites / name / "own").write_text(name)
    (runs / "run").touch()
    machines = [network.machine(name, [sites, runs], {data: sites / name}) for name in ("berlin", "paris")]
    for machine in machines:
        assert machine.run(["cat", str(data / "own")]).stdout == machine.name
        assert machine.run(["ls", "-A", str(sites), str(runs)]).stdout == f"{runs}:\n\n{sites}:\n"
        machine.run(["touch", str(runs / machine.name), f"/dev/shm/{tmp_path.name}", str(data / "made")])
    assert [file.name for file in runs.iterdir()] == ["run"]
    assert not Path("/dev/shm", tmp_path.name).exists()
    assert list(data.iterdir()) == []
    assert (sites / "paris" / "made").exists()


def test_a_killed_group_is_gone_and_all_else_is_with_the_network(tmp_path) -> None:
    """After a failure, too, and with what left its group."""
    follow, before = f"tail -f {tmp_path}/hosts", (socket.if_nameindex(), Path("/proc/self/mounts").read_text())
    with pytest.raises(ZeroDivisionError), Network(tmp_path) as network:
        machine = network.machine("berlin")
        killed = machine.start(["sh", "-c", f"{follow} & echo ready; {follow}"], "killed.log")
        killed.until("ready")
        assert running(tmp_path)
        killed.kill()
        assert killed.process.returncode == -signal.SIGKILL
        with pytest.raises(subprocess.TimeoutExpired):
            machine.run(follow.split(), seconds=0.1)
        ended = machine.start(["sh", "-c", f"echo ready; exec {follow}"], "ended.log")
        ended.until("ready")
        ended.signal(signal.SIGSTOP)
        ended.signal(signal.SIGCONT)
        assert ended.end() == -signal.SIGINT
        assert "tail" not in machine.run(["ps", "ax"]).stdout
        machine.start(follow.split(), "stopped.log").signal(signal.SIGSTOP)
        machine.start(["sh", "-c", f"setsid {follow} & echo ready; {follow}"], "left.log").until("ready")
        1 / 0  # noqa: B018
    assert not running(tmp_path)
    assert (socket.if_nameindex(), Path("/proc/self/mounts").read_text()) == before


def running(folder: Path) -> list[str]:
    """The commands that have a folder in their line."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line]


def test_a_plain_process_does_not_see_a_folder_that_is_hidden_from_it(tmp_path) -> None:
    runs = tmp_path / "its runs"
    runs.mkdir()
    (runs / "run").touch()
    line = hidden_from(runs, ["ls", "-A", str(runs), str(tmp_path)])
    assert subprocess.check_output(line, text=True) == f"{tmp_path}:\nits runs\n\n{runs}:\n"


def test_sites_have_parts_of_the_examples_and_no_other_site_reads_them(network, tmp_path) -> None:
    """Together they are all, by the function that a run inline reads them with."""
    names = ("berlin", "paris", "rome")
    sites = images_at_sites(tmp_path, names, 100)
    source = find_source(sites.function)
    machines = [sites.machine(network, name) for name in (*names, "head")]
    seen = [machine.run(["ls", str(sites.data)]).stdout.split() for machine in machines]
    assert not any(machine.run(["ls", str(sites.own)]).stdout for machine in machines)
    assert seen == [["examples.npz", f"part-{number}.npz"] for number in range(3)] + [[]]
    assert [len(source.load(number, 3).train) for number in range(3)] == [34, 33, 33]
