"""Verifying runs that were pruned: nothing is found of what was let go, and all that was changed is."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import StoreDamaged
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.pruned import Pruned, write_pruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from tests.storage.conftest import contents
from tests.storage.upkeep.dying import named


@pytest.mark.parametrize("keep", ["every:2", "last:1"])
def test_a_run_that_keeps_less_is_sound_also_when_it_has_gone_on(every, keep: str) -> None:
    store = every.whole()
    prune_run(store, Keep.of(keep))
    seen = verify(store.path)
    assert (seen.findings, seen.notes, seen.rounds) == ((), (), 4)
    assert seen.bytes == sum(each.stat().st_size for each in store.path.rglob("*") if each.is_file())
    every.rounds(store, 5, 6, 6, carry_from={0: 1})
    assert (verify(store.path).findings, verify(store.path).notes) == ((), ())
    prune_run(RoundStore(store.path), Keep.of("last:1"))
    assert verify(store.path).sound


def test_each_flipped_byte_of_what_says_that_a_run_was_pruned_is_named(every, flip) -> None:
    path = every.whole().path
    prune_run(RoundStore(path), Keep.of("last:2"))
    record = path / "commits/pruned.json"
    for byte in range(0, record.stat().st_size, 31):
        flip(record, byte)
        assert named(path) == {"commits/pruned.json"}
        flip(record, byte)
    assert verify(path).sound
    added = path / "commits/pruned-damaged-0123456789ab.json"
    added.write_bytes(b"added")
    assert named(path) == {f"commits/{added.name}"}


def test_what_is_missing_of_a_run_that_keeps_less_is_named(every) -> None:
    path = every.whole().path
    prune_run(RoundStore(path), Keep.of("last:2"))
    keys = [key for key in LocalPlace(path).sizes() if "/c/" in key and key.startswith(("params", "updates"))][::4]
    whole = contents(path)
    for key in keys:
        (path / key).unlink()
    assert named(path) == {*keys}
    for key in keys:
        (path / key).write_bytes(whole[key])
    (path / "commits/pruned.json").unlink()
    assert any(re.fullmatch("params/.*/c/1(/0)*", key) for key in named(path))


def test_a_forged_record_of_what_was_pruned_is_named(every) -> None:
    """The initial state, the newest one or what is carried; or one of another round."""
    store, record = every.whole(), "commits/pruned.json"
    write_pruned(store.log, Pruned(), 3)
    of_another_round = json.loads((store.path / record).read_text()) | {"newest": 4}
    (store.path / record).write_text(json.dumps(of_another_round))
    assert named(store.path) == {record}
    for what, round in (("states", 0), ("states", 4), ("updates", 1)):
        write_pruned(store.log, Pruned(**{what: frozenset({round})}), 4)
        assert named(store.path) == {record}


def test_a_record_of_another_history_is_named(every) -> None:
    store, other = every.whole(), every.create("other", rounds=4)
    other = every.rounds(other, 1, 2, 4, carry_from={0: 1}, seconds=9.0)
    assert other.log.run == store.log.run
    prune_run(other, Keep.of("states"))
    record = (other.path / "commits/pruned.json").read_bytes()
    (store.path / "commits/pruned.json").write_bytes(record)
    assert named(store.path) == {"commits/pruned.json"}


def test_a_damaged_record_that_was_quarantined_belongs_to_the_run(every, flip) -> None:
    store = every.whole()
    prune_run(store, Keep.of("states"))
    flip(store.path / "commits/pruned.json", 5)
    with pytest.raises(StoreDamaged, match=r"commits/pruned\.json is no record of what was pruned"):
        store.tensors.pruned()
    recover(RoundStore(store.path))
    (aside,) = (key for key in store.place.sizes() if "pruned-damaged" in key)
    found = named(store.path)
    # What was let go is not told from what was lost any more.
    assert aside not in found
    assert {key.split("/")[0] for key in found} == {"updates", "carry", "permutations", "similarities"}
    flip(store.path / aside, 5)
    assert named(store.path) == found | {aside}


def test_a_run_is_sound_while_its_rounds_are_let_go(every) -> None:
    store = every.whole()
    goes = iter(["every:2", "last:2", "last:1"])

    class Pruning(LocalPlace):
        """Of which more is let go while it is verified."""

        def sizes(self) -> dict[str, int]:
            sizes = super().sizes()
            if self.path == store.path:
                prune_run(RoundStore(store.path), Keep.of(next(goes)))
            return sizes

    for _ in range(3):
        assert verify(Pruning(store.path)).findings == ()
    assert Run(store.path).kept == [0, 4]


@pytest.mark.parametrize(("absent", "drawn", "sound"), [((), "", False), ((0,), "", True), ((), "present", True)])
def test_an_update_that_a_round_did_not_wait_for_may_be_left(tiny, absent, drawn: str, sound: bool) -> None:
    """Its partition came after the deadline, or went away so that the round began again with who was left."""
    store = tiny.create(rounds=1, asks=drawn)
    store.commit(replace(commit := tiny.write(store, 1, absent=absent), updates={1: commit.updates[1]}))
    store.show()
    assert (verify(store.path).sound, bool(verify(store.path).notes)) == (sound, sound)
