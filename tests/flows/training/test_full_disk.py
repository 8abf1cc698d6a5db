"""A disk that is full at any moment of a run: one clear line, and once there is room the same bits."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess

import pytest

from roundweave.storage.errors import DiskFull
from roundweave.storage.places import local
from roundweave.storage.places.local import LocalPlace
from tests.flows.prefect_server import command_line
from tests.machines import hidden_from

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


MORE = [pytest.param(room, marks=pytest.mark.thorough) for room in (5, 24, 25, 27, 28, 30, 31, 33, 45, 48, 60)]


# While the run is made, at its lease, at its split, at updates, a state, a commit and a history, and at its end.
@pytest.mark.parametrize("room", [0, 40, *MORE])
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
cd "$0" && head -c 7600000 /dev/zero > filler
"$@" train --root runs --name full --rounds 12 --executor inline --local-steps 2
echo "exit $?" >&2
rm filler
"$@" resume full --root runs --executor inline --json
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_one_clear_line_and_the_run_goes_on_once_there_is_room(
    train, tmp_path
) -> None:
    reference = train(rounds=12, local_steps=2, name="reference")
    line = hidden_from(tmp_path, ["sh", "-c", SMALL, str(tmp_path), *command_line()], "12m")
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    error, exit_code = [line for line in done.stderr.splitlines() if line.startswith(("error", "exit"))]
    says = r"error: cannot write \S+/full\.zarr/\S+: No space left on device; make room there; .*"
    assert (bool(re.fullmatch(says, error)), exit_code) == (True, "exit 1")
    assert json.loads(done.stdout.splitlines()[-1])["digest"] == reference.digest
