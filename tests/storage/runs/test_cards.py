"""How runs and rounds are printed: from what is recorded alone, printable, and short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.places.local import LocalPlace


@pytest.fixture
def run(tiny) -> Run:
    return tiny.run({}, {"refused": (0,)})


def cells(text: str) -> list[list[str]]:
    """The words of each line after the first, which is the `repr`."""
    return [line.split() for line in text.splitlines()[1:]]


def test_a_run_shows_what_it_is_and_its_last_score(tiny, run) -> None:
    """A state has 115 bytes, of which 24 are frozen, and a round's updates of two partitions have 254."""
    line = "<Run tiny · interrupted · 2/3 rounds · fed_avg · 2 partitions · 11 params · 0.000805 MB>"
    assert str(run).splitlines() == [line, "round 2    loss 0.5 · accuracy 0.5000", f"place      {run.path}"]
    assert repr(run) == line
    tiny.write(run._store, 3)
    assert "2/3 rounds (1 uncommitted)" in repr(run)


def test_a_round_shows_what_became_of_each_update(run) -> None:
    second = run.round(2)
    assert repr(second) == f"<Round 2 · loss 0.5 · accuracy 0.5000 · 1 updates · {second.commit.state[:12]}>"
    assert str(second).startswith(f"{second!r}\n")
    assert cells(str(second)) == [
        ["partition", "weight", "result", "train_loss"],
        ["0", "10", "not", "sound", "2"],
        ["1", "11", "accepted", "3"],
    ]
    assert str(run.round(0)) == repr(run.round(0))


def test_what_others_wrote_moves_no_cursor_and_begins_no_line(tiny) -> None:
    store = tiny.create("a\x1b[2J")
    commit = tiny.write(store, 1)
    refused = replace(commit.updates[0], refused="not sound\n\x1b[2Jall is well" + 1000 * "!")
    store.commit(replace(commit, updates={0: refused}))
    run = Run(store.path)
    for text in (str(run), str(run.round(1))):
        assert text.replace("\n", "").isprintable()
    assert "\\x1b[2J" in str(run)
    lines = str(run.round(1)).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 150


def test_looking_at_a_run_reads_what_is_recorded_and_no_tensor(tiny, monkeypatch) -> None:
    """A run of many rounds costs no more reads than one of few, beside a look at the names of its records."""
    keys, counts, read = [], [], LocalPlace.read
    monkeypatch.setattr(LocalPlace, "read", lambda at, key, most=None: keys.append(key) or read(at, key, most))
    for rounds in (2, 20):
        path = tiny.train(tiny.create(f"of{rounds}", rounds=rounds), rounds).path
        keys.clear()
        run = Run(path)
        str(run), str(run.round(-1))
        assert not [key for key in keys if not key.startswith("commits/") and not key.endswith("zarr.json")]
        counts.append(len(keys))
    assert counts[0] == counts[1] <= 12


def test_the_size_is_that_of_the_updates_of_a_cohort(tiny) -> None:
    run = tiny.run(*[{"metrics": {0: {}}}] * 2)  # 24 bytes once, three states of 91, and two updates of 127
    assert repr(run).endswith("11 params · 0.000551 MB>")
