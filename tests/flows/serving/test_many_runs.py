"""Many runs in one process, one after the other and side by side: what stays of them, and the bits of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

SEVERAL = """
import gc
import sys
import weakref

import psutil

import roundweave as rw
from roundweave.tasks.data.partitions import Partitions

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


SIDE_BY_SIDE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import roundweave as rw


def digest(root, scheduler, seed):
    where = {"executor": "graph", "scheduler": scheduler} if scheduler else {"executor": "inline"}
    config = rw.TrainConfig(partitions=2, rounds=2, seed=seed, name=f"seed{seed}", root=root, **where)
    return rw.train(config, bar=False).digest


def in_tasks(train, seeds):
    from prefect import flow, task

    @flow
    def trained():
        return [future.result() for future in [task(train).submit(seed) for seed in seeds]]

    return trained()


if __name__ == "__main__":
    how, root, *scheduler = sys.argv[1:]
    seeds, train = range(10), partial(digest, root, *scheduler or [None])
    if how == "tasks":
        train.__name__ = "train"
        print(*in_tasks(train, seeds))
    elif how == "threads":
        with ThreadPoolExecutor(len(seeds)) as pool:
            print(*pool.map(train, seeds))
    else:
        print(*map(train, seeds))
"""


def side_by_side(folder: Path, how: str, *scheduler: str) -> list[str]:
    """The digests of ten runs in a fresh process."""
    (folder / "trains.py").write_text(SIDE_BY_SIDE)
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    own |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600", "PREFECT_HOME": str(folder / "prefect")}
    line = [sys.executable, str(folder / "trains.py"), how, str(folder / how), *scheduler]
    done = subprocess.run(line, env=own, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The digests of ten runs one after the other."""
    return side_by_side(tmp_path_factory.mktemp("alone"), "one after the other")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_runs_side_by_side_in_a_cold_process_have_the_bits_of_runs_alone(
    tmp_path, alone, dask_processes, how: str, cluster: bool
) -> None:
    assert len(set(alone)) == 10
    assert side_by_side(tmp_path, how, *([dask_processes(tmp_path)] if cluster else [])) == alone


@pytest.mark.thorough
def test_a_script_that_trains_wherever_it_is_imported_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(
        "import roundweave as rw\n\nrw.train(rw.TrainConfig(rounds=1, workers=1))\n"
    )
    line = [sys.executable, str(tmp_path / "trains.py")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    says = 'trains.py must train below `if __name__ == "__main__":`, as worker processes import it'
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(says)
    assert done.stderr.count("Traceback") == 1
