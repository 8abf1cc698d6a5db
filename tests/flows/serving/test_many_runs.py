"""Many runs in one process, one after the other and side by side: what stays of them, and the bits of each."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from roundweave.tasks.data.partitions import Partitions
from tests.flows.nights import trained
from tests.patience import PATIENCE


def test_after_a_run_none_of_its_examples_are_alive(monkeypatch) -> None:
    drawn = []

    def watch(name: str) -> None:
        load = getattr(Partitions, name)

        def watched(*arguments: object) -> object:
            examples = load(*arguments)
            drawn.append(weakref.ref(examples.inputs))
            return examples

        monkeypatch.setattr(Partitions, name, watched)

    watch("load")
    watch("held_out_part")
    trained()
    gc.collect()
    assert len(drawn) >= 4
    assert [each for each in drawn if each() is not None] == []


SIDE_BY_SIDE = """
import sys
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
    root, *scheduler = sys.argv[1:]
    train = partial(digest, root, *scheduler or [None])
    train.__name__ = "train"
    print(*(map if root.endswith("alone") else in_tasks)(train, range(10)))
"""


def ten_runs(folder: Path, root: str, *scheduler: str) -> list[str]:
    """The digests of ten runs in a fresh process."""
    (folder / "trains.py").write_text(SIDE_BY_SIDE)
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    own |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600", "PREFECT_HOME": str(folder / "prefect")}
    line = [sys.executable, str(folder / "trains.py"), str(folder / root), *scheduler]
    done = subprocess.run(line, env=own, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The digests of ten runs one after the other."""
    return ten_runs(tmp_path_factory.mktemp("runs"), "alone")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [False, True])
def test_runs_side_by_side_in_a_cold_process_have_the_bits_of_runs_alone(
    tmp_path, alone, dask_processes, cluster: bool
) -> None:
    assert len(set(alone)) == 10
    assert ten_runs(tmp_path, "together", *([dask_processes(tmp_path)] if cluster else [])) == alone


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


@pytest.mark.thorough
def test_a_script_that_comes_by_a_pipe_trains_on_workers_and_goes_on_when_it_comes_again(tmp_path: Path) -> None:
    """Its file is `<stdin>`, which workers cannot run; its class has one digest in both processes."""
    script = """
import sys, torch, roundweave as rw
class Net(torch.nn.Linear):
    def __init__(self): super().__init__(64, 10)
    def forward(self, images): return super().forward(images.flatten(1))
print(rw.train(rw.TrainConfig(model=Net, rounds=int(sys.argv[1]), name="piped"), bar=False).done)
"""
    how = {"input": script, "capture_output": True, "text": True, "timeout": PATIENCE, "cwd": tmp_path}
    for rounds in ("1", "2"):
        done = subprocess.run([sys.executable, "-", rounds], check=False, **how)
        assert (done.stdout, done.stderr) == (f"{rounds}\n", "")
