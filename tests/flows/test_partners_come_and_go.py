"""Whatever dies or is cut off among machines that train together: no round is lost, and the bits are the same.

Berlin and Paris have half of the images each. The scheduler, the command, the runs and the process that stores are
on a third machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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

class Model(torch.nn.Linear):
    def forward(self, inputs):
        if self.training:
            time.sleep(float(os.environ.get("PAUSE", 0)))
        return super().forward(inputs.flatten(1))

def model():
    return Model({pixels}, 10)
"""
"""A network whose steps take their time on the workers, without any work."""


class Training:
    """A run over two sites, and their machines; `fields` and `digest` are those of the run in one process."""

    def __init__(self, network: Network, sites: Sites, runs: Path, fields: dict[str, object], digest: str) -> None:
        self.network, self.sites, self.runs, self.fields, self.digest = network, sites, runs, fields, digest
        self.head = sites.machine(network, "head")
        self.berlin, paris = (sites.machine(network, name, [runs]) for name in NAMES)
        self.scheduler = start_scheduler(self.head)
        self.worker, _ = start_worker(self.berlin), start_worker(paris)

    def begin(self, *more: object, until: int = 3, what: object = "train") -> None:
        """Start the command, and wait until a round is committed."""
        words = ["resume", "there"]
        if what == "train":
            given = {"rounds": ROUNDS, "sites": "berlin,paris", "name": "there", "window": 1} | self.fields
            words = ["train", *(word for name in given for word in (f"--{name.replace('_', '-')}", given[name]))]
        words += ["--scheduler", SCHEDULER, "--root", self.runs, *more]
        self.command = self.head.start(plain_command(*words), f"{what}.log")
        self.until(until)

    def done(self) -> int:
        """The last committed round; -1 without any."""
        rounds = [int(file.stem) for file in (self.runs / "there.zarr" / "commits").glob("[0-9]*.json")]
        return max(rounds, default=-1)

    def until(self, round: int) -> None:
        """Wait until a round is committed."""
        deadline = time.monotonic() + PATIENCE
        while self.done() < round:
            ended = self.command.process.poll() is not None and self.done() < round
            assert not ended, f"it ended in round {self.done()}:\n{self.told()}"
            assert time.monotonic() < deadline, f"it stands in round {self.done()}:\n{self.told()}"
            time.sleep(0.02)

    def ends(self) -> Run:
        """The run, whose command has ended with all rounds."""
        assert self.command.wait(150) == 0, self.told()
        run = Run(self.runs / "there.zarr")
        assert (run.committed, run.verify().findings) == ([*range(ROUNDS + 1)], ())
        assert "Traceback" not in self.command.log(), self.told()
        return run

    def ends_with_a_line(self) -> str:
        """The line of the command, which has ended with exit code 1 and no other."""
        assert self.command.wait(150) == 1, self.told()
        lines = self.command.log().splitlines()
        assert [line for line in lines if line.startswith(("error: ", "Traceback"))] == lines[-1:], self.told()
        return lines[-1]

    def replays(self, rounds: str, *which: object) -> None:
        """Fails unless these rounds are replayed at the sites to the bit."""
        words = ["replay", "there", *which, "--root", self.runs, "--scheduler", SCHEDULER]
        done = self.head.run(plain_command(*words))
        assert f"round {rounds}: bit-identical" in done.stdout, done.stdout + done.stderr

    def stores(self) -> tuple[psutil.Process, psutil.Process]:
        """The process of the command, and the one that stores for it."""
        (command,) = psutil.Process(self.command.process.pid).children()
        (storing,) = worker_processes(command)
        return command, storing

    def told(self) -> str:
        """All logs."""
        files = sorted(self.network.folder.glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in files)


@pytest.fixture
def training(network, train, tmp_path, monkeypatch) -> Training:
    sites, runs = images_at_sites(tmp_path, NAMES, 60), tmp_path / "there"
    (tmp_path / "mine.py").write_text(MODEL.format(pixels=sites.pixels))
    fields = {"data": sites.function, "model": f"{tmp_path / 'mine.py'}:model", "algorithm": "scaffold", "lr": 0.1}
    fields |= {"local_steps": 2}
    reference = train(**fields, partitions=2, rounds=ROUNDS, name="reference")
    monkeypatch.setenv("PAUSE", "0.15")
    runs.mkdir()
    return Training(network, sites, runs, fields, reference.digest)


def plain_worker(machine: Machine) -> Started:
    """A worker of Dask's own command, which has the machine's name."""
    offers = ["--resources", f"site-{machine.name}=1", "--nthreads", "1", "--no-dashboard", "--name", machine.name]
    line = [sys.executable, "-m", "dask", "worker", SCHEDULER, *offers]
    return machine.start(line, f"{machine.name}-plain.log")


def killed(training: Training, start: Callable[[Machine], Started] = start_worker) -> None:
    training.worker.kill()
    time.sleep(4)
    assert training.done() < ROUNDS - 3
    start(training.berlin)


def of_the_same_name(training: Training) -> None:
    training.worker.end()
    training.worker = plain_worker(training.berlin)
    training.until(training.done() + 2)
    killed(training, plain_worker)


def cut(seconds: int, way: Callable[[Machine], None] = Machine.cut) -> Callable[[Training], None]:
    def harm(training: Training) -> None:
        way(training.berlin)
        time.sleep(seconds)
        assert training.done() < ROUNDS - 3
        training.berlin.mend()

    return harm


SLOW, THOROUGH = pytest.mark.slow, pytest.mark.thorough
WAITS = "no worker offers site-berlin: waiting for one, 600 s at most (--wait-for-workers)"


@pytest.mark.parametrize(
    ("harm", "options", "says"),
    [
        pytest.param(killed, [], WAITS, marks=THOROUGH, id="a worker is killed and another started"),
        pytest.param(of_the_same_name, [], WAITS, marks=SLOW, id="and one of the same name"),
        pytest.param(killed, ["--deadline", 1, "--quorum", 2], WAITS, marks=THOROUGH, id="beyond a deadline"),
        pytest.param(cut(5), [], "", marks=THOROUGH, id="a link is cut"),
        pytest.param(cut(60), [], "", marks=SLOW, id="a link is cut for long"),
        pytest.param(cut(5, Machine.cut_one_way), [], "", marks=SLOW, id="one way of a link"),
        pytest.param(cut(60, Machine.cut_one_way), [], "", marks=SLOW, id="one way of a link for long"),
        pytest.param(lambda training: training.stores()[1].kill(), [], "", marks=SLOW, id="who stores is killed"),
    ],
)
def test_what_passes_costs_no_round_and_no_bit(training, harm, options, says: str) -> None:
    training.begin(*options)
    harm(training)
    assert training.ends().digest == training.digest
    assert says in training.command.log()


GONE = "no worker offers site-berlin after 5 s"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "mend", "says"),
    [
        (lambda t: t.worker.kill(), lambda t: start_worker(t.berlin), (GONE, "--wait-for-workers")),
        (lambda t: t.berlin.cut(), lambda t: t.berlin.mend(), (GONE, "--wait-for-workers")),
        (
            lambda t: t.scheduler.kill(),
            lambda t: start_scheduler(t.head),
            ("scheduler is gone", "roundweave resume"),
        ),
    ],
    ids=["a site is killed", "a site is cut off", "the scheduler is killed"],
)
def test_what_is_gone_for_good_ends_the_run_with_a_line_and_it_goes_on_later(training, harm, mend, says) -> None:
    """To a new scheduler the workers come by themselves."""
    training.begin("--wait-for-workers", 5, "--worker-timeout", 10)
    harm(training)
    line = training.ends_with_a_line()
    assert all(words in line for words in says)
    mend(training)
    training.begin(what="resume")
    assert training.ends().digest == training.digest


@pytest.mark.thorough
def test_a_cohort_of_those_that_are_there_does_without_a_site_until_it_is_back(training, train) -> None:
    """While all are there it is the cohort that the seed draws; who was asked is in the record, for replays."""
    reference = train(**training.fields, partitions=2, cohort=1, rounds=5, name="drawn")
    present = ["--cohort", 1, "--cohort-from", "present", "--rounds", 300, "--wait-for-workers", 30]
    training.begin(*present, until=6)
    training.worker.kill()
    gone = training.done()
    training.until(gone + 6)
    start_worker(training.berlin)
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
    training.begin("--deadline", 1)
    way(training.berlin)
    run = training.ends()
    assert [run.round(number).absent for number in range(8, ROUNDS + 1)] == [(0,)] * (ROUNDS - 7)
    training.berlin.mend()
    start_worker(training.berlin)
    training.replays(f"1 to {ROUNDS}", "--all")


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_a_command_that_is_killed_is_resumed(training, alone) -> None:
    """With the process that stores, which is its own, or alone: that ends by itself."""
    training.begin()
    command, storing = training.stores()
    command.kill() if alone else training.command.kill()
    training.begin(what="resume")
    assert training.ends().digest == training.digest
    storing.wait(60)


@pytest.mark.slow
def test_what_a_parameter_server_did_after_a_worker_was_killed_is_replayed(training) -> None:
    """Which pushes came in which order is recorded; those in flight at Berlin are mapped again."""
    training.begin("--algorithm", "fed_buff", until=5)
    training.worker.kill()
    start_worker(training.berlin)
    training.ends()
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
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, line[:7]) == (1, "error: "), done.stderr
    assert "so this machine stores them, and worker tcp://10.47.0.4:" in line
    assert "open that to the cluster, or start a worker that reaches the runs" in line
    assert "Traceback" not in done.stderr
    assert not (runs / "there.zarr").exists()
