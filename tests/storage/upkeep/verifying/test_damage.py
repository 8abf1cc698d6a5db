"""A file that is flipped, missing, cut short or another one is refused by its name, by whoever needs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from operator import methodcaller
from pathlib import Path

import pytest

from roundweave.storage.errors import StoreDamaged
from roundweave.storage.rounds.recovery import recover
from roundweave.storage.runs.run import StoredRun
from tests.storage.upkeep.dying import named

STATE: dict[str, str] = {
    "params/fc.weight/c/4/0/0": "fc.weight",
    "params/scale/c/4": "scale",
    "params/coarse/c/4/0": "coarse",
    "buffers/norm.count/c/4": "norm.count",
    "memory/velocity/coarse/c/4/0": "memory/velocity/coarse",
    "frozen/table/c/0/0": "table",
}
"""Of the newest state: its name in the view of a run."""

UPDATES: dict[str, Callable[[StoredRun], object]] = {
    "updates/float32/c/4/{}/0": methodcaller("update", 1),
    "updates/extras/control/bfloat16/c/4/{}/0": methodcaller("update", 1),
    "carry/variate/float32/c/4/{}/0": methodcaller("update", 1),
    "permutations/fc/c/4/{}/0": methodcaller("match", 1),
    "similarities/mix/c/4/{}/0": methodcaller("match", 1),
}
"""Of partition 1 in the newest round, and what reads it of that round."""

SHOWN = {"updates": "updates/scale", "carry": "carry/variate/scale"}


def exchange(path: Path) -> None:
    """Put a sound file of another round or partition in the place of this one."""
    key = str(path)
    shutil.copy(key.replace("/c/4", "/c/3"), path) if "/c/4" in key else path.write_bytes(b"another")


HARM: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "exchanged": exchange,
}


def rows(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Each file with a flipped bit, and the first with all that can be wrong with it."""
    first, *others = keys
    more = [pytest.param(key, "flipped", marks=pytest.mark.thorough) for key in others[1:]]
    return [(first, harm) for harm in HARM] + [(others[0], "flipped"), *more]


def refused(run: StoredRun, key: str, *reads: Callable[[], object]) -> None:
    """Every reader refuses the file by its name, or by what it is of; verifying names it."""
    for read in reads:
        with pytest.raises(StoreDamaged, match=f"{key}|another one|is not what was committed"):
            read()
    assert key in named(run.path)


@pytest.mark.parametrize("every_in", [1], ids=["alone"], indirect=True)
@pytest.mark.parametrize(("key", "harm"), rows(STATE))
def test_a_state_is_read_as_it_was_committed_or_not_at_all(every, key, harm) -> None:
    store = every.whole()
    HARM[harm](store.path / key)
    run, name = StoredRun(store.path), STATE[key]
    refused(run, key, lambda: run.round(4).state, lambda: run[name].values, lambda: run.ds[name].values)
    if key.startswith("frozen"):
        with pytest.raises(StoreDamaged, match="no round is whole, not even the initial state"):
            recover(store)
        return
    assert run[name][3].load().notnull().all()
    assert recover(store) == (3, [4])
    assert (store.log.rounds(), len(StoredRun(store.path).damaged)) == ([0, 1, 2, 3], 1)
    every.rounds(store, 4, 4, 4, carry_from={0: 1})
    assert StoredRun(store.path).round(4).state.round == 4


@pytest.mark.parametrize(("key", "harm"), [*rows(UPDATES), ("similarities/mix/c/4/{}/0", "exchanged")])
def test_what_a_partition_sent_is_read_as_it_was_committed_or_not_at_all(every, key, harm) -> None:
    store, read, kind = every.whole(), UPDATES[key], key.partition("/")[0]
    key = key.format(1 if every.schema.shard == 1 else 0)
    HARM[harm](store.path / key)
    run = StoredRun(store.path)
    refused(run, key, lambda: read(run.round(4)), *[lambda: run.tree[SHOWN[kind]].values] * (kind in SHOWN))
    assert read(run.round(3))
    assert recover(store) == ((3, [4]) if harm == "cut" else (4, []))
