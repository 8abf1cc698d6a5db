"""Who writes a run: processes that begin at once, machines that compute alike."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from roundweave.flows.machines import Machine, machines
from roundweave.flows.stored import Run
from roundweave.storage.errors import NumericsMismatch

FIELDS = {"model": "logistic", "partitions": 2, "local_steps": 1, "rounds": 4}


AT_ONCE = f"""
import sys, time
from pathlib import Path
from roundweave.storage.errors import RunBusy
from tests.training import trained

root, me = Path(sys.argv[1]), sys.argv[2]
for number in range(3):
    (root / f"ready{{number}}{{me}}").touch()
    while not (root / f"go{{number}}").exists():
        time.sleep(0.0001)
    try:
        trained(root, **{FIELDS!r}, name=f"run{{number}}")
        print("done", number, flush=True)
    except RunBusy as error:
        print("busy", number, error, flush=True)
"""


@pytest.mark.thorough
def test_of_two_that_begin_at_once_one_trains_and_the_other_is_told_to_wait(tmp_path) -> None:
    lines = [[sys.executable, "-c", AT_ONCE, str(tmp_path), name] for name in "ab"]
    processes = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for line in lines]
    for number in range(3):
        while not all((tmp_path / f"ready{number}{name}").exists() for name in "ab"):
            assert all(process.poll() in (None, 0) for process in processes)
            time.sleep(0.001)
        (tmp_path / f"go{number}").touch()
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    for number in range(3):
        lines = [line for text in said for line in text.splitlines() if line.split()[1] == str(number)]
        assert len(lines) == 2
        assert any(line.startswith("done") for line in lines)
        assert all("is being written by process" in line for line in lines if line.startswith("busy"))
        assert Run(tmp_path / f"run{number}.zarr").status == "complete"


def test_a_run_does_not_go_on_where_a_machine_stores_that_computes_other_bits(train, monkeypatch) -> None:
    """Though all machines that map are as they were."""
    fields = {"model": "logistic", "name": "run"}
    train(**fields, rounds=1)

    def with_another_store(*given: object) -> list[Machine]:
        *maps, stores = machines(*given)
        return [*maps, replace(stores, fingerprint=stores.fingerprint | {"processor": "another"})]

    monkeypatch.setattr("roundweave.flows.training.job.machines", with_another_store)
    with pytest.raises(NumericsMismatch, match=r"store would compute other bits .* processor 'another'"):
        train(**fields, rounds=2)
