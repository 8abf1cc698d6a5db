"""Runs as users start them, of many kinds, killed at random moments: they go on to the bits of one not killed.

Each writes a line to the file that the variable `ROUNDWEAVE_KILLS` names, where there is one.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from roundweave.flows.stored import Run, open_run
from tests.flows.command.in_process import run as command
from tests.flows.prefect_server import until
from tests.victims import Cluster, Training

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_prefect")]

SMALL = "model=mlp partitions=5 batch-size=16 rounds=24"
STEPS = f"{SMALL} local-steps=2"
HUGE = 'model=mlp model-options={"hidden":240000} batch-size=8'
"""A network of 72 MB."""

LARGE = f"{HUGE} partitions=3 rounds=5 local-steps=1"

ROUNDS_OF_OWN = "partitions=5 batch-size=4 rounds=24 local-steps=2"

MINE = '''
import torch
import roundweave as rw


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, (inputs[:, 1] > 0).long()


class Rows(torch.utils.data.IterableDataset):
    """Without a length, in one order."""

    def __iter__(self):
        return iter(zip(*rows(200, 0)))


def stream():
    return rw.Stream(Rows(), examples=200)


def unsound(partition, partitions):
    """Partition 3 has one input that is no number, so that its update is refused whenever that is drawn."""
    inputs, targets = rows(40, partition)
    if partition == 3:
        inputs[:8, 0] = float("nan")
    return inputs, targets
'''

TABLE = f"""
sync_sgd | {SMALL} algorithm=sync_sgd momentum=0.9 | worker command prefect
fed_avg bf16 | {STEPS} algorithm=fed_avg precision=bf16 | scheduler worker
diloco inline | {STEPS} algorithm=diloco executor=inline | command prefect command
matched | {STEPS} algorithm=matched | command worker
fed_avgm, keep updates | {STEPS} algorithm=fed_avgm keep=updates:5 | nanny command
fed_adam, keep every | {STEPS} algorithm=fed_adam keep=every:4 | command worker command
fed_adagrad, keep last | {STEPS} algorithm=fed_adagrad keep=last:3 | worker scheduler
fed_yogi, keep states | {STEPS} algorithm=fed_yogi keep=states executor=ranks | worker command
fed_prox, cohort | {STEPS} algorithm=fed_prox cohort=3 | worker nanny
scaffold, cohort | {STEPS} algorithm=scaffold cohort=0.5 executor=ranks | worker scheduler
fed_dyn, own scores | {STEPS} algorithm=fed_dyn score-partitions=0.2 | command worker
fed_nova, dirichlet | {SMALL} algorithm=fed_nova local-epochs=1 split=dirichlet:0.5 | nanny worker command
mime_lite | {STEPS} algorithm=mime_lite executor=ranks | command nanny
q_fed_avg, largest partitions | {STEPS} algorithm=q_fed_avg split=sizes:1.5 cohort=3 | scheduler command
afl | {STEPS} algorithm=afl executor=auto | worker command
async_sgd | {SMALL} algorithm=async_sgd rounds=60 | holder command
downpour | {SMALL} algorithm=downpour push-every=2 fetch-every=4 rounds=60 | holder scheduler
easgd, cohort | {STEPS} algorithm=easgd cohort=3 rounds=60 | holder nanny command
fed_buff | {STEPS} algorithm=fed_buff buffer=3 max-staleness=2 rounds=40 | holder worker
fed_buff inline | {STEPS} algorithm=fed_buff executor=inline rounds=60 | command command
async_sgd again | {SMALL} algorithm=async_sgd max-staleness=3 rounds=240 | worker command worker command worker
fed_buff, cohort | {STEPS} algorithm=fed_buff buffer=2 cohort=3 rounds=240 | worker command holder command worker
ring | {STEPS} topology=ring split=shards:2 | scheduler worker
torus, ranks | {STEPS} partitions=6 topology=torus:2 executor=ranks | worker command
exponential | {STEPS} topology=exponential partitions=9 | nanny command
star, carried | {STEPS} topology=star optimizer=AdamW optimizer-state=carried executor=ranks | scheduler command
two levels, keep | {STEPS} topology=two_level:3:2 partitions=6 keep=every:5 | command worker
stacked | {STEPS} stacked=4 partitions=10 | worker scheduler
stacked, ranks | {STEPS} stacked=4 partitions=10 split=dirichlet:0.3 executor=ranks | worker command
tensor parallel | {STEPS} ranks=2 executor=ranks | worker command
stream | {ROUNDS_OF_OWN} data=mine.py:stream model=linear | worker command
stream, ranks | {ROUNDS_OF_OWN} data=mine.py:stream model=linear executor=ranks | nanny scheduler
split again | {STEPS} resplit-every=3 score-partitions=0.2 | worker scheduler command
split again, ranks | {STEPS} resplit-every=2 algorithm=scaffold executor=ranks | command worker
split again, inline | {STEPS} resplit-every=5 executor=inline algorithm=fed_dyn | command command
large | {LARGE} keep=last:2 | worker command
large, ranks | {LARGE} keep=last:2 executor=ranks | command worker
large, scheduler | {LARGE} keep=states algorithm=fed_avgm | scheduler nanny
large, server | {HUGE} partitions=2 rounds=8 algorithm=async_sgd | holder command
recompute | {STEPS} algorithm=fed_avgm keep=recompute:7 | worker command nanny
recompute, ranks | {STEPS} algorithm=scaffold cohort=3 keep=recompute:5 executor=ranks | command worker
recompute, server | {SMALL} algorithm=async_sgd keep=recompute:10 rounds=60 | holder command
recompute, ring | {STEPS} topology=ring keep=recompute:4 executor=inline | command command
bucket | {STEPS} algorithm=scaffold | command worker
bucket, ranks | {STEPS} executor=ranks keep=updates:4 | worker command
bucket, server | {SMALL} algorithm=async_sgd rounds=40 | worker command
accuracy | {STEPS} target-accuracy=0.8 rounds=20 | command scheduler
patience | {STEPS} patience=3 evaluate-every=2 lr=1.5 executor=ranks | worker command
quorum | {ROUNDS_OF_OWN} data=mine.py:unsound quorum=4 reduce=trimmed_mean:1 model=linear | worker nanny command
krum, bfloat16 | {STEPS} reduce=krum:1 dtype=bfloat16 | scheduler command
"""
COMBINATIONS = dict(row.split(" | ", 1) for row in TABLE.strip().splitlines())
"""The options of a run, and what is killed, one after the other. An option that is given twice is the last."""

NAMED = ("nanny", "scheduler", "holder")
"""Processes that only a cluster of one's own has."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Begun by the first that needs it, and mended by each."""
    cluster = Cluster(tmp_path_factory.mktemp("dask"))
    yield cluster
    cluster.end()


def options_of(text: str) -> list[str]:
    """The words of a command, of which an option's last value counts."""
    options = dict(word.split("=", 1) for word in text.split())
    return [word for key, value in options.items() for word in (f"--{key}", value)]


def killed_in_turn(training: Training, victims: list[str], draw: random.Random) -> list[str]:
    """Kill each at a random moment, and wait for the end; what was killed, after which round, and how long for."""
    rounds = int(training.options[training.options.index("--rounds") + 1])
    seen = []
    for number, who in enumerate(victims):
        part = rounds * 0.6 / len(victims)
        # Round -1 is before there is a run.
        if not training.wait_for(int(draw.uniform(number * part, (number + 1) * part)) - 1):
            break
        time.sleep(draw.uniform(0, 0.2))
        began, after = time.monotonic(), training.done()
        training.kill(who)
        another = who in ("command", "scheduler") and after > 0
        goes_on = training.wait_for_another(after) if another else training.wait_for(after + 1)
        went_on = f"{time.monotonic() - began:.1f} s" if goes_on else "its end"
        seen.append(f"{who} after {after}, {went_on}")
    assert training.process.wait(300) == 0, (training.folder / "log").read_text()
    return seen


def identities(run: Run) -> list[object]:
    return [run.round(number).commit.identity() for number in range(run.done + 1)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_run_of_any_kind_goes_on_to_the_same_bits(name, cluster, request, tmp_path, monkeypatch, capsys) -> None:
    text, _, killed = COMBINATIONS[name].partition(" | ")
    victims = killed.split()
    root = f"{request.getfixturevalue('s3').bucket()}/runs" if "bucket" in name else str(tmp_path / "runs")
    monkeypatch.setenv("ROUNDWEAVE_ROOT", root)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    if "prefect" not in victims:
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # nobody is there, which costs no start
    Path("mine.py").write_text(MINE)
    there = cluster if set(victims) & set(NAMED) else None
    if there:
        there.begin()
    options = options_of(text)
    training = Training(tmp_path, root, "killed", options, there)
    try:
        seen = killed_in_turn(training, victims, random.Random(name))
        until(lambda: not any(map(psutil.Process.is_running, training.left)))
        assert not re.search("Traceback|distributed", (tmp_path / "log").read_text())
    finally:
        if training.process.poll() is None:
            os.killpg(training.process.pid, signal.SIGKILL)
            training.process.wait()
    run = open_run("killed", root)
    # On a cluster updates reach a server as they do.
    order = "" if run.round(1).commit.server is None else " order=recorded:killed"
    whole = options_of(f"{text} executor=inline{order}")
    code, out, err = command(capsys, "train", *whole, "--name", "whole")
    assert code == 0, out + err
    reference = open_run("whole", root)
    equal = (run.digest, identities(run)) == (reference.digest, identities(reference))
    if file := os.environ.get("ROUNDWEAVE_KILLS"):
        with Path(file).open("a") as table:
            tokens = len({run.round(number).commit.token for number in range(1, run.done + 1)})
            print(f"{name} | {'; '.join(seen)} | {run.done} rounds, {tokens} writers | {equal}", file=table)
    assert run.status == reference.status == "complete"
    assert equal
    for words in (["verify", "killed"], ["replay", "killed", "--all", "--executor", "inline"]):
        code, out, err = command(capsys, *words)
        assert code == 0, out + err
