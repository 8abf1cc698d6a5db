"""A worker that has another Roundweave than the process that begins a run is refused before round 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import roundweave
from roundweave.storage.errors import NumericsMismatch
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.numerics.fingerprints import check_source, source_digest

FIELDS = {"model": "logistic", "partitions": 2, "rounds": 2, "local_steps": 1}


def test_a_worker_of_another_checkout_is_refused(train, dask_processes, tmp_path) -> None:
    other = tmp_path / "other"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(roundweave.__file__).parent, other / "roundweave", ignore=ignored)
    with (other / "roundweave/tasks/rounds/steps.py").open("a") as file:
        file.write("# another version\n")
    refused = pytest.raises(NumericsMismatch, match=r"tcp://.* has another version of Roundweave .*; install")
    with connect(dask_processes(tmp_path, 1, PYTHONPATH=str(other)), 1) as client:
        client.wait_for_workers(1)
        for mixed in (False, True):
            with refused:
                train(GraphExecutor(client), **FIELDS, mixed_hardware=mixed, name="refused")
    assert not (tmp_path / "runs/refused.zarr").exists()


def test_the_same_source_is_accepted_and_none_is_stored(train) -> None:
    check_source(source_digest(), source_digest(), "this process")
    assert source_digest() not in str(train(**FIELDS, name="run").attributes)
