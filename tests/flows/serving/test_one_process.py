"""Many runs in one process: nothing of a run's examples stays, and one Prefect server at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEVERAL = """
import gc
import sys
import weakref

import psutil

import roundweave as rw
from tasks.data.partitions import Partitions

drawn = []
load = Partitions.load


def watched(self, *arguments):
    partition = load(self, *arguments)
    drawn.extend(weakref.ref(each.inputs) for each in (partition.train, partition.held_out))
    return partition


if __name__ == "__main__":
    Partitions.load = watched
    for number in range(2):
        root = f"{sys.argv[1]}/{number}"
        rw.train(rw.TrainConfig(partitions=3, rounds=2, executor="inline", name="a", root=root))
        gc.collect()
        children = psutil.Process().children(recursive=True)
        servers = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        print(len(drawn), sum(each() is not None for each in drawn), len(servers))
"""


@pytest.mark.slow
def test_after_a_run_no_examples_are_alive_and_there_is_one_server(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(SEVERAL)
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    line = [sys.executable, str(tmp_path / "several.py"), str(tmp_path / "runs")]
    printed = subprocess.run(line, env=own, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["6 0 1", "12 0 1"]
