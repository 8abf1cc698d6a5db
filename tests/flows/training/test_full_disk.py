"""A disk that is full at any moment of a run: one clear line, and once there is room the same bits."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys

import pytest

from roundweave.storage.errors import DiskFull
from roundweave.storage.places import local
from roundweave.storage.places.local import LocalPlace

FIELDS = {"model": "logistic", "partitions": 2, "rounds": 3}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """So many files can be made: the last number counts."""
    write = local.write_and_close
    room = [10**6]

    def limited(descriptor: int, *arguments: object) -> None:
        room[0] -= 1
        if room[0] < 0:
            os.close(descriptor)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, *arguments)

    monkeypatch.setattr(local, "write_and_close", limited)
    return room


MORE = [pytest.param(room, marks=pytest.mark.thorough) for room in (5, 24, 27, 28, 30, 31, 33, 45, 48, 60)]


# While the run is made, at its lease, at its split, at updates, a state, a commit and a history, and at its end.
@pytest.mark.parametrize("room", [0, 25, 40, *MORE])
def test_a_full_disk_is_one_clear_line_and_costs_no_round(train, files, tmp_path, room: int) -> None:
    reference = train(**FIELDS, name="reference")
    files[0] = room
    with pytest.raises(DiskFull, match=r"cannot write \S+: No space left on device; make room there"):
        train(**FIELDS, name="full")
    files[0] = 10**6
    # The claim could not be given back, and would end by itself in 30 s.
    LocalPlace(tmp_path / "runs/full.zarr").delete("commits/leases")
    assert train(**FIELDS, name="full").digest == reference.digest


SMALL = """
mount -t tmpfs -o size=12m tmpfs "$1" && cd "$1" && export ROUNDWEAVE_ROOT="$1/runs"
head -c 9000000 /dev/zero > filler
"$2" -m roundweave.flows.command.app train --name full --rounds 12 --executor inline --local-steps 2
echo "exit $?" >&2
rm filler
"$2" -m roundweave.flows.command.app resume full --executor inline --json
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_one_clear_line_and_the_run_goes_on_once_there_is_room(
    train, tmp_path
) -> None:
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system mounts no file system for a process of its own")
    reference = train(rounds=12, local_steps=2, name="reference")
    line = ["unshare", "-rm", "sh", "-c", SMALL, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    error, exit_code = [line for line in done.stderr.splitlines() if not line.startswith("round ")]
    assert re.fullmatch(
        r"error: cannot write \S+/full\.zarr/\S+: No space left on device; make room there; .*", error
    )
    assert exit_code == "exit 1"
    assert json.loads(done.stdout.splitlines()[-1])["digest"] == reference.digest
