"""Whatever dies or is cut off among machines that train together: no round is lost, and the bits are the same.

Berlin and Paris have half of the images each. The scheduler, the command, the runs and the process that stores are
on a third machine. The seconds until a run goes on are printed: they are no law.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from roundweave.flows.stored import Run
from tests.commands import plain_command
from tests.machines import Machine, Network, Started
from tests.patience import PATIENCE
from tests.sites import SCHEDULER, Sites, images_at_sites, start_scheduler, start_worker
from tests.workers import worker_processes

NAMES = ("berlin", "paris")
ROUNDS = 14

MODEL = """
import os, time
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LazyLinear(10)

    def forward(self, inputs):
        if self.training:
            time.sleep(float(os.environ.get("PAUSE", 0)))
        return self.layer(inputs.flatten(1))

def model():
    network = Model()
    network(torch.zeros(1, {pixels}))
    return network
"""
"""A network whose steps take their time on the workers, without any work."""


@dataclass
class Training:
    """A run over two sites, and the machines; `fields` and `digest` are those of the run in one process."""

    network: Network
    sites: Sites
    runs: Path
    options: list[object]
    digest: str
    fields: dict[str, object]
    machines: dict[str, Machine] = field(default_factory=dict)
    workers: dict[str, Started] = field(default_factory=dict)

    @property
    def head(self) -> Machine:
        return self.machines["head"]

    def begin(self) -> None:
        """Start the scheduler and the workers."""
        hides = {name: [self.runs] for name in NAMES}
        self.machines = {n: self.sites.machine(self.network, n, hides.get(n, [])) for n in ("head", *NAMES)}
        self.scheduler = start_scheduler(self.head)
        for name in NAMES:
            self.workers[name] = start_worker(self.machines[name])

    def train(self, *more: object) -> None:
        """Start the command."""
        placed = ["--scheduler", SCHEDULER, "--root", self.runs, "--name", "there", "--window", 1]
        self.command = self.head.start(plain_command("train", *self.options, *placed, *more), "command.log")

    def resume(self, *more: object) -> None:
        words = ["resume", "there", "--root", self.runs, "--scheduler", SCHEDULER]
        self.command = self.head.start(plain_command(*words, *more), "resumed.log")

    def done(self) -> int:
        """The last committed round; -1 without any."""
        rounds = [int(file.stem) for file in (self.runs / "there.zarr" / "commits").glob("[0-9]*.json")]
        return max(rounds, default=-1)

    def until(self, round: int, seconds: float = PATIENCE) -> None:
        """Wait until a round is committed."""
        deadline = time.monotonic() + seconds
        while self.done() < round:
            if self.command.process.poll() is not None and self.done() < round:
                pytest.fail(f"it ended in round {self.done()}:\n{self.told()}")
            if time.monotonic() > deadline:
                pytest.fail(f"it stands in round {self.done()}:\n{self.told()}")
            time.sleep(0.02)

    def goes_on(self, what: str, since: float | None = None) -> None:
        """Wait for the next two rounds, and print how long that took: the one under way may be all but done."""
        began, at = since or time.monotonic(), self.done()
        self.until(min(at + 2, ROUNDS))
        print(f"\n{what}: goes on {time.monotonic() - began:.1f} s later")

    def ends_whole(self) -> str:
        """What the command said, which has ended with all rounds and the bits of one process."""
        assert self.command.wait(150) == 0, self.told()
        run = Run(self.runs / "there.zarr")
        assert (run.done, run.digest) == (ROUNDS, self.digest)
        assert run.committed == list(range(ROUNDS + 1))
        assert not run.verify().findings
        assert "Traceback" not in self.command.log(), self.told()
        print(self.command.log())
        return self.command.log()

    def ends_with_a_line(self) -> str:
        """The line of the command, which has ended with exit code 1 and no other."""
        assert self.command.wait(150) == 1, self.told()
        lines = self.command.log().splitlines()
        assert "Traceback" not in self.command.log(), self.told()
        assert [line.startswith("error: ") for line in lines].count(True) == 1, self.told()
        assert lines[-1].startswith("error: "), self.told()
        print(self.command.log())
        return lines[-1]

    def replays(self, rounds: str, *which: object) -> None:
        """Fails unless these rounds are replayed at the sites to the bit."""
        words = ["replay", "there", *which, "--root", self.runs, "--scheduler", SCHEDULER]
        done = self.head.run(plain_command(*words))
        assert f"round {rounds}: bit-identical" in done.stdout, done.stdout + done.stderr

    def told(self) -> str:
        """All logs."""
        files = sorted(self.network.folder.glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in files)


@pytest.fixture
def training(network, train, tmp_path, monkeypatch) -> Training:
    sites = images_at_sites(tmp_path, NAMES, 60)
    (tmp_path / "mine.py").write_text(MODEL.format(pixels=sites.pixels))
    fields = {"data": sites.function, "model": f"{tmp_path / 'mine.py'}:model", "algorithm": "scaffold", "lr": 0.1}
    fields |= {"local_steps": 2, "partitions": 2}
    reference = train(**fields, rounds=ROUNDS, name="reference")
    monkeypatch.setenv("PAUSE", "0.15")
    runs = tmp_path / "there"
    runs.mkdir()
    options: list[object] = ["--data", sites.function, "--model", fields["model"], "--rounds", ROUNDS]
    options += ["--local-steps", 2, "--lr", 0.1, "--sites", "berlin,paris", "--algorithm", "scaffold"]
    made = Training(network, sites, runs, options, reference.digest, fields)
    made.begin()
    return made


def plain_worker(machine: Machine) -> Started:
    """A worker of Dask's own command, which has the machine's name."""
    offers = ["--resources", f"site-{machine.name}=1", "--nthreads", "1", "--no-dashboard", "--name", machine.name]
    line = [sys.executable, "-m", "dask", "worker", SCHEDULER, *offers]
    return machine.start(line, f"{machine.name}-plain.log")


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start_worker, id="another name", marks=pytest.mark.thorough),
        pytest.param(plain_worker, id="the same name", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_killed_is_waited_for_and_maps_again(training, start) -> None:
    berlin = training.machines["berlin"]
    if start is plain_worker:
        training.workers["berlin"].end()
        training.workers["berlin"] = plain_worker(berlin)
    training.train()
    training.until(3)
    training.workers["berlin"].kill()
    time.sleep(3)
    assert training.done() < ROUNDS - 3
    began = time.monotonic()
    start(berlin)
    training.goes_on("a worker is killed and started again after 3 s", began)
    said = training.ends_whole()
    assert "no worker offers site-berlin: waiting for one, 600 s at most (--wait-for-workers)" in said


@pytest.mark.slow
def test_a_worker_that_is_killed_before_round_1_is_waited_for(training) -> None:
    """While it reads its examples."""
    reads = training.sites.own / "berlin" / "reads"
    parts = Path(training.sites.function.rpartition(":")[0])
    slow = f"""
    import pathlib, time
    file = pathlib.Path('{training.sites.data}/reads')
    if file.parent.is_dir() and partition == 0 and not file.exists():
        file.touch()
        time.sleep(60)
"""
    head = "def part(partition, partitions):\n"
    parts.write_text(parts.read_text().replace(head, head + slow))
    training.train()
    while not reads.exists():
        assert training.command.process.poll() is None, training.told()
        time.sleep(0.02)
    training.workers["berlin"].kill()
    began = time.monotonic()
    start_worker(training.machines["berlin"])
    training.goes_on("a worker is killed before round 1 and started again at once", began)
    training.ends_whole()


@pytest.mark.parametrize(
    ("way", "seconds"),
    [
        pytest.param(Machine.cut, 5, marks=pytest.mark.thorough),
        pytest.param(Machine.cut_one_way, 5, marks=pytest.mark.slow),
        pytest.param(Machine.cut, 60, marks=pytest.mark.slow),
        pytest.param(Machine.cut_one_way, 60, marks=pytest.mark.slow),
    ],
)
def test_a_link_that_is_cut_for_a_while_costs_no_round(training, way, seconds) -> None:
    training.train()
    training.until(3)
    way(training.machines["berlin"])
    time.sleep(seconds)
    assert training.done() < ROUNDS - 3
    training.machines["berlin"].mend()
    training.goes_on(f"a link is cut for {seconds} s ({way.__name__})")
    training.ends_whole()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "cut"])
def test_a_site_that_is_gone_for_good_ends_the_run_with_a_line_and_it_goes_on_later(training, way: str) -> None:
    training.train("--wait-for-workers", 5, "--worker-timeout", 10)
    training.until(3)
    berlin = training.machines["berlin"]
    training.workers["berlin"].kill() if way == "killed" else berlin.cut()
    began = time.monotonic()
    line = training.ends_with_a_line()
    print(f"\na site is {way} for good, waited for 5 s: ended {time.monotonic() - began:.1f} s later")
    assert "no worker offers site-berlin after 5 s" in line
    assert "--wait-for-workers" in line
    start_worker(berlin) if way == "killed" else berlin.mend()
    training.resume()
    training.goes_on("resumed")
    training.ends_whole()


@pytest.mark.thorough
def test_a_cohort_of_those_that_are_there_does_without_a_site_until_it_is_back(training, train) -> None:
    """While all are there it is the cohort that the seed draws; who was asked is in the record, for replays."""
    reference = train(**training.fields, cohort=1, rounds=5, name="drawn")
    training.train("--cohort", 1, "--cohort-from", "present", "--rounds", 300, "--wait-for-workers", 30)
    training.until(6)
    training.workers["berlin"].kill()
    gone = training.done()
    training.until(gone + 6)
    start_worker(training.machines["berlin"])
    back = gone + 6
    while [*Run(training.runs / "there.zarr").round(back).commit.updates] != [0]:
        training.until(back := back + 1)
    training.command.end()
    run = Run(training.runs / "there.zarr")
    took_part = [list(run.round(number).commit.updates) for number in run.committed[1:]]
    assert {len(partitions) for partitions in took_part} <= {0, 1}
    assert [run.round(k).commit.state for k in range(6)] == [reference.round(k).commit.state for k in range(6)]
    assert took_part[gone + 2 : gone + 6] == [[1]] * 4, took_part
    assert not run.verify().findings
    training.replays(f"{back}", "--round", back)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [Machine.cut, Machine.cut_one_way, lambda machine: machine.started[0].kill()],
    ids=["cut", "one-way", "killed"],
)
def test_a_run_with_a_deadline_goes_on_without_a_site_that_is_gone_for_good(training, way) -> None:
    training.train("--deadline", 1)
    training.until(3)
    way(training.machines["berlin"])
    training.goes_on(f"{way} with a deadline of 1 s")
    assert training.command.wait(150) == 0, training.told()
    run = Run(training.runs / "there.zarr")
    assert [run.round(number).absent for number in range(8, ROUNDS + 1)] == [(0,)] * (ROUNDS - 7)
    assert not run.verify().findings
    training.machines["berlin"].mend()
    start_worker(training.machines["berlin"])
    training.replays(f"1 to {ROUNDS}", "--all")


@pytest.mark.thorough
def test_a_round_whose_quorum_is_gone_waits_for_it_beyond_its_deadline(training) -> None:
    training.train("--deadline", 1, "--quorum", 2)
    training.until(3)
    training.workers["berlin"].kill()
    time.sleep(4)
    start_worker(training.machines["berlin"])
    said = training.ends_whole()
    assert "no worker offers site-berlin: waiting for one, 600 s at most (--wait-for-workers)" in said


@pytest.mark.slow
def test_the_process_that_stores_is_started_again(training) -> None:
    training.train()
    training.until(3)
    (command,) = psutil.Process(training.command.process.pid).children()
    (storing,) = worker_processes(command)
    storing.kill()
    training.goes_on("the process that stores is killed")
    training.ends_whole()


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_a_command_that_is_killed_is_resumed(training, alone) -> None:
    """With the process that stores, which is its own, or alone: that ends by itself."""
    training.train()
    training.until(3)
    (command,) = psutil.Process(training.command.process.pid).children()
    (storing,) = worker_processes(command)
    if alone:
        command.kill()
    else:
        training.command.kill()
    began = time.monotonic()
    training.resume()
    training.goes_on(f"the command is killed{' alone' if alone else ''} and resumed at once", began)
    training.ends_whole()
    storing.wait(60)


@pytest.mark.slow
def test_where_the_scheduler_dies_a_line_says_so_and_workers_join_the_next_by_themselves(training) -> None:
    training.train()
    training.until(3)
    training.scheduler.kill()
    began = time.monotonic()
    line = training.ends_with_a_line()
    print(f"\nthe scheduler is killed: ended {time.monotonic() - began:.1f} s later")
    assert "scheduler is gone" in line
    assert "roundweave resume" in line
    start_scheduler(training.head)
    began = time.monotonic()
    training.resume()
    training.goes_on("the scheduler is started again, and resumed", began)
    training.ends_whole()


@pytest.mark.slow
def test_what_a_parameter_server_did_after_a_worker_was_killed_is_replayed(training) -> None:
    """Which pushes came in which order is recorded; those in flight at Berlin are mapped again."""
    training.train("--algorithm", "fed_buff")
    training.until(5)
    training.workers["berlin"].kill()
    began = time.monotonic()
    start_worker(training.machines["berlin"])
    training.goes_on("a worker of a parameter server is killed and started again at once", began)
    assert training.command.wait(150) == 0, training.told()
    assert Run(training.runs / "there.zarr").committed == list(range(ROUNDS + 1))
    training.replays(f"1 to {ROUNDS}", "--all")


@pytest.mark.slow
def test_where_workers_do_not_reach_the_command_s_machine_a_line_says_so_before_round_1(network, tmp_path) -> None:
    """The scheduler is on a machine that both reach."""
    sites, runs = images_at_sites(tmp_path, NAMES, 60), tmp_path / "there"
    runs.mkdir()
    head, desk = (sites.machine(network, name, hidden) for name, hidden in (("head", [runs]), ("desk", [])))
    machines = [sites.machine(network, name, [runs]) for name in NAMES]
    start_scheduler(head)
    for machine in machines:
        start_worker(machine)
    route = f"ip route add unreachable {desk.address}/32"
    assert machines[1].run(route.split()).returncode == 0
    words = ["--scheduler", SCHEDULER, "--root", runs, "--sites", "berlin,paris", "--data", sites.function]
    done = desk.run(plain_command("train", *words, "--name", "there"), 120)
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[-1][:7]) == (1, "error: "), done.stderr
    assert "so this machine stores them, and worker tcp://10.47.0.4:" in lines[-1]
    assert "open that to the cluster, or start a worker that reaches the runs" in lines[-1]
    assert "Traceback" not in done.stderr
    assert not (runs / "there.zarr").exists()
