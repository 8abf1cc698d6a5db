"""One writer at a time: claims of real processes, their deaths and their ends."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from roundweave.storage.errors import RoundFailed, RunBusy, WriterFenced
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.lease import Lease, hold_lease, read_lease, this_machine
from roundweave.storage.values.digests import sealed
from roundweave.storage.values.hashing import json_digest


def hold(folder: Path, held: Any, end: Any) -> None:
    """In another process: hold the lease until it is told to end."""
    with hold_lease(LocalPlace(folder), "other") as lease:
        held.put(lease.epoch)
        end.wait()


def mine() -> Lease:
    born = psutil.Process().create_time() - psutil.boot_time()
    named = {"host": socket.gethostname(), "machine": this_machine(), "pid": os.getpid(), "born": born}
    return Lease(**named, token="t", epoch=4, renewed=4e9, expiry=4e9 + 30)


def write(folder: Path, lease: Lease) -> None:
    LocalPlace(folder).write(f"commits/leases/{lease.epoch}.json", sealed(lease))


def wait(folder: Path, lease: Lease, seconds: float) -> None:
    """Make a claim look as if it had not been renewed for so many seconds."""
    path = folder / f"commits/leases/{lease.epoch}.json"
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_second_writer_is_refused_while_the_first_lives_and_takes_over_from_a_zombie(tmp_path) -> None:
    """One that was killed holds its number until its parent asks how it ended; without an init nobody does."""
    context, place = multiprocessing.get_context("fork"), LocalPlace(tmp_path)
    held, end = context.Queue(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, held, end))
    process.start()
    try:
        assert held.get() == 1
        with pytest.raises(RunBusy, match=f"is being written by process {process.pid} on {socket.gethostname()}"):
            hold_lease(place, "mine").__enter__()
        assert read_lease(place).token == "other"
        process.kill()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with hold_lease(place, "mine") as lease:
            assert (lease.epoch, lease.token, lease.fresh) == (2, "mine", True)
            assert read_lease(place) == lease
    finally:
        process.join()
    assert not read_lease(place).fresh
    with hold_lease(place, "again") as lease:
        assert lease.epoch == 3


LATE, EARLY = time.time() - 3600, time.time() + 3600
BOOT, _, NAMESPACE = this_machine().partition(" ")
ELSEWHERE: dict[str, dict[str, object]] = {
    "on another host": {"host": "elsewhere.invalid", "machine": "another boot", "pid": 2**30},
    "in another container": {"machine": f"{BOOT} other-than-{NAMESPACE}", "pid": 2**30, "born": 1.0},
    "with our number in another container": {"machine": f"{BOOT} other-than-{NAMESPACE}", "born": 1.0},
    "with a clock that is an hour late": {"machine": "another boot", "renewed": LATE, "expiry": LATE + 30},
    "with a clock that is an hour early": {"machine": "another boot", "renewed": EARLY, "expiry": EARLY + 30},
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_writer_elsewhere_counts_until_its_lease_expires(tmp_path, where) -> None:
    """By the clock of the disk alone; its process number means another process here, or none."""
    away = replace(mine(), **ELSEWHERE[where])
    write(tmp_path, away)
    for seconds in (0, 25):
        wait(tmp_path, away, seconds)
        with pytest.raises(RunBusy, match=rf"process {away.pid} on {away.host}"):
            hold_lease(LocalPlace(tmp_path), "mine").__enter__()
    wait(tmp_path, away, 31)
    with hold_lease(LocalPlace(tmp_path), "mine") as lease:
        assert lease.epoch == 5


def test_another_process_that_got_the_same_number_is_not_the_writer() -> None:
    assert mine().fresh
    assert not replace(mine(), born=mine().born - 100).fresh
    assert not replace(mine(), expiry=1.0).fresh
    assert not replace(mine(), expiry=0.0).fresh


def test_a_writer_that_was_superseded_does_not_take_the_lease_back(tmp_path) -> None:
    with hold_lease(LocalPlace(tmp_path), "old"):
        later = replace(mine(), token="new", epoch=7)
        write(tmp_path, later)
    assert read_lease(LocalPlace(tmp_path)) == later


def test_a_failure_is_kept_until_the_run_is_held_again(tmp_path, reason="zwei ü") -> None:
    with pytest.raises(RoundFailed), hold_lease(LocalPlace(tmp_path), "first"):
        raise RoundFailed(reason)
    assert read_lease(LocalPlace(tmp_path)).failure == reason
    for _ in range(2):
        with hold_lease(LocalPlace(tmp_path), "second"):
            assert read_lease(LocalPlace(tmp_path)).failure is None
        assert read_lease(LocalPlace(tmp_path)).failure is None


def test_the_failure_of_a_writer_that_was_superseded_says_nothing_of_the_run(tmp_path) -> None:
    with pytest.raises(WriterFenced), hold_lease(LocalPlace(tmp_path), "old"):
        write(tmp_path, replace(mine(), token="new", epoch=7))
        raise WriterFenced("round 3 was committed by another writer")
    assert read_lease(LocalPlace(tmp_path)).failure is None


NONSENSE = {"pid": ["many", 10**30, -1, 1.5], "born": ["long ago"], "host": [3, "two\nlines"], "failure": [3]}
NONSENSE |= {"rounds": [1.0], "renewed": ["now", -1.0], "machine": [3, "two\nlines"], "epoch": ["last"], "x": [1]}
NONSENSE["expiry"] = ["soon", None, 1e300, math.inf]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, each in NONSENSE.items() for value in each])
def test_a_claim_of_nonsense_keeps_nobody_out(tmp_path, name: str, value: object) -> None:
    said = asdict(replace(mine(), epoch=1)) | {name: value}
    content = json.dumps(said | {"digest": json_digest(said)})
    LocalPlace(tmp_path).write("commits/leases/1.json", content.encode())
    with hold_lease(LocalPlace(tmp_path), "mine") as lease:
        assert lease.epoch == 2


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_claim_keeps_others_out_only_as_it_was_written(tmp_path, step) -> None:
    """Each bit that is flipped in it, and its name."""
    place, key = LocalPlace(tmp_path), "commits/leases/4.json"
    content = sealed(mine())
    place.write(key, content)
    assert read_lease(place) == mine()
    for bit in range(0, 8 * len(content), step):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        place.write(key, bytes(flipped))
        assert read_lease(place) is None
    place.write(key, content)
    place.write("commits/leases/5.json", content)
    assert read_lease(place) is None


NONE = [("4.json", text) for text in (b"", b"{", b"[]", b'{"host": "a"}', b"[" * 100_000, b" " * (1 << 21))]
NAMES = ("x", "٣.json", "07.json", f"{'9' * 200}.json", "-1.json", "5.json/x", "1e3.json")


@pytest.mark.parametrize(("name", "content"), [*NONE, *((name, None) for name in NAMES)])
def test_what_is_no_claim_or_has_no_name_of_one_keeps_nobody_out(tmp_path, name, content) -> None:
    place = LocalPlace(tmp_path)
    place.write(f"commits/leases/{name}", sealed(mine()) if content is None else content)
    assert read_lease(place) is None
    with hold_lease(place, "mine", rounds=7) as lease:
        assert read_lease(place) == lease
        assert lease.rounds == 7


def test_a_link_in_place_of_a_claim_keeps_nobody_out(tmp_path) -> None:
    (tmp_path / "elsewhere").write_bytes(sealed(replace(mine(), epoch=5)))
    (tmp_path / "commits/leases").mkdir(parents=True)
    (tmp_path / "commits/leases/5.json").symlink_to(tmp_path / "elsewhere")
    with hold_lease(LocalPlace(tmp_path), "mine") as lease:
        assert (lease.epoch, read_lease(LocalPlace(tmp_path))) == (6, lease)
