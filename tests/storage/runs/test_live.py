"""A run that another process writes at this moment: what a notebook sees of it is whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.storage.values.digests import state_digest, tensor_digests

ROUNDS = 25

WRITER = """
import sys
from pathlib import Path
from roundweave.storage.rounds.lease import hold_lease
from tests.storage.conftest import Tiny

tiny = Tiny(Path(sys.argv[1]))
store = tiny.create("live", rounds=int(sys.argv[2]))
with hold_lease(store.place, "writer"):
    for round in range(1, store.rounds + 1):
        print(round, flush=True)
        if round <= 3:
            sys.stdin.readline()
        store.commit(tiny.write(store, round))
"""


@pytest.fixture
def writer(tiny) -> Iterator[subprocess.Popen[str]]:
    """A process that writes three rounds, each when it is told to, and then the others as fast as it can."""
    line = [sys.executable, "-c", WRITER, str(tiny.folder), str(ROUNDS)]
    home = Path(__file__).parents[3]
    with subprocess.Popen(line, cwd=home, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def go_on(writer: subprocess.Popen[str]) -> int:
    """Let the writer write a round; gives the number of the next, which comes when that is committed."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write("\n")
    writer.stdin.flush()
    return int(writer.stdout.readline())


def assert_whole(tiny, run: StoredRun, seen: int) -> None:
    """All that is shown up to a round is of one moment, and is what was written."""
    assert len(run.history()) == len(run["fc.weight"]) == len(run.ds["round"]) == seen + 1
    assert run.history()["loss"][1:].tolist() == [1 / round for round in range(1, seen + 1)]
    last = run.round(-1)
    assert last.number == seen
    digests = tensor_digests(tiny.state(seen).named(tiny.schema.layout))
    assert run.digest == state_digest(digests, seen)
    assert tensor_digests(last.state.named(tiny.schema.layout)) == digests
    repr(run), str(run)


def test_a_refreshed_view_follows_a_running_writer(tiny, writer) -> None:
    assert writer.stdout is not None
    assert writer.stdout.readline() == "1\n"
    run = open_stored("live")
    for round in range(3):
        assert (run.refresh().done, run.status, run.rounds) == (round, "running", ROUNDS)
        assert_whole(tiny, run, round)
        assert go_on(writer) == round + 2
        assert run.done == round
    seen = [3]
    while seen[-1] < ROUNDS:
        seen.append(run.refresh().done)
        assert_whole(tiny, run, seen[-1])
    assert seen == sorted(seen)
    assert writer.wait(60) == 0
    assert run.refresh().status == "complete"
