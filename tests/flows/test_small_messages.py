"""Updates of few bytes are few bytes on the wire of whoever stores them, and the bits are those of one process."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from roundweave.flows.stored import open_run
from roundweave.tasks.data.sources.table import find_source
from tests.flows.command.in_process import run
from tests.sites import SCHEDULER, images_at_sites, start_scheduler, start_worker

ROUNDS = 3

COMMAND = """
import json, re, subprocess, sys
from pathlib import Path

from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.graph import GraphExecutor
from tests.training import trained

root, scheduler, runs = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def received(commit):
    listed = subprocess.run(["ss", "-tinOH"], check=True, capture_output=True, text=True).stdout
    apart = r"^\\S+ +\\d+ +\\d+ +(\\S+):\\d+ +(?!\\1:).* bytes_received:(\\d+)"
    print("received", sum(int(count) for _, count in re.findall(apart, listed, re.MULTILINE)))


with GraphExecutor.opened(Setting(scheduler, store=str(root), sites=("berlin", "paris"))) as executor:
    for fields in runs:
        run = trained(root, executor, 1, received, **fields)
print("identical", run.replay("all", executor="graph", scheduler=scheduler).identical)
"""
"""Trains runs, and tells after each round what other machines sent to this one; replays the last one.

The system counts each connection's bytes once. An interface counts them as often as they come: some are sent again
where an answer was slow.
"""


@pytest.mark.thorough
def test_int8_is_a_quarter_of_the_bytes_where_no_worker_reaches_the_store(
    network, train, tmp_path, capsys
) -> None:
    """Two updates of 4 MB a round, or of 1 MB. The rounds after the first are counted: the start cancels.

    Metrics tell what a partition is given of a round, and what it gives: each tensor's exponent has 2 bytes.
    """
    sites, runs = images_at_sites(tmp_path, ("berlin", "paris"), 100), tmp_path / "runs"
    runs.mkdir()
    pixels = find_source(sites.function).load(0, 2).train.inputs[0].numel()
    fields: dict[str, Any] = {"data": sites.function, "partitions": 2, "rounds": ROUNDS, "local_steps": 1}
    fields["model_options"] = {"hidden": (hidden := round(1e6 / (pixels + 11)))}
    parameters = hidden * (pixels + 11) + 10
    named = {"plain": None, "packed": "int8"}
    digests = [train(**fields, compress=named[name], name=f"{name}-here").digest for name in named]

    head = sites.machine(network, "head")
    start_scheduler(head)
    for machine in [sites.machine(network, name, [runs]) for name in sites.names]:
        start_worker(machine)
    there = [fields | {"compress": named[name], "name": name, "sites": "berlin,paris"} for name in named]
    done = head.run([sys.executable, "-P", "-c", COMMAND, str(runs), SCHEDULER, json.dumps(there)])
    assert [open_run(name).digest for name in named] == digests, done.stderr
    counts = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("received")]
    plain, packed = counts[ROUNDS - 1] - counts[0], counts[-1] - counts[ROUNDS]
    for name, sent in {"plain": 4 * parameters, "packed": parameters + 2 * 4}.items():
        history = open_run(name).history()[["received_bytes", "sent_bytes"]]
        assert history.loc[1:].to_numpy().tolist() == [[4 * parameters, sent]] * ROUNDS
    assert f" {parameters + 8:,} " in run(capsys, "show", "packed")[1]
    assert done.stdout.endswith("identical True\n"), done.stdout + done.stderr
    updates = (ROUNDS - 1) * 2 * 4 * parameters
    assert 0.99 * updates < plain < 1.02 * updates
    assert packed < 0.26 * plain
