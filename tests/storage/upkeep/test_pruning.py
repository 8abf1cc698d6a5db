"""Pruning a stored run: which files stay, what readers are told, and that a death on the way does no harm."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.flows.stored import Run
from roundweave.storage.errors import RoundFailed, RoundPruned, StoreDamaged
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.pruned import Pruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import LetGo, prune_run
from roundweave.storage.upkeep.recovery import newest_sound, recover
from tests.storage.upkeep.dying import Dying, Killed, bury, each_death, named
from tests.storage.upkeep.test_keep import KEEPS


def test_an_update_stays_while_its_partition_carries_it(tiny) -> None:
    store = tiny.create(rounds=5)
    for round, carry_from in enumerate([{0: 1, 1: 1}, {0: 2, 1: 1}, {0: 3, 1: 1}, {0: 3, 1: 4}], 1):
        store.commit(tiny.write(store, round, carry_from=carry_from))
        prune_run(store, Keep.of("last:1"))
        keys = [key.split("/") for key in store.place.sizes() if key.startswith("carry/variate/float32/c/")]
        needed = {(source, partition) for partition, source in carry_from.items()}
        assert {(int(r), int(p)) for *_, r, p, _ in keys} == needed | {(round, 0), (round, 1)}
        assert newest_sound(store) == round


def test_what_was_pruned_is_told_from_what_was_lost_also_to_who_opened_the_run_before(tiny) -> None:
    store = tiny.train(tiny.create(rounds=5), 5)
    before = Run(store.path)
    prune_run(store, Keep.of("every:2"))
    gone = f"of {re.escape(str(store.place))} went when it was pruned; "
    with pytest.raises(RoundPruned, match=f"the state of round 3 {gone}the nearest are those of rounds 2, 4"):
        store.tensors.read_state(3)
    with pytest.raises(RoundPruned, match=f"the updates of round 5 {gone}there are those of rounds 2, 4"):
        store.tensors.read_update(5, 1)
    for read in (lambda: before.round(1).params, lambda: before.round(3).updates["scale"]):
        with pytest.raises(RoundPruned):
            read()
    store.place.delete("params/scale/c/4")
    with pytest.raises(StoreDamaged, match="round 4 has no params/scale, params/scale/c/4 is missing"):
        store.tensors.read_state(4)
    run = Run(store.path)
    assert (run.committed, run.kept) == ([0, 1, 2, 3, 4, 5], [0, 2, 4, 5])
    assert run["fc.weight"]["round"].values.tolist() == [0, 2, 4, 5]


def test_it_is_said_what_goes_and_a_dry_one_lets_nothing_go(tiny) -> None:
    store = tiny.train(tiny.create(rounds=4), 4)
    before = store.place.sizes()
    goes = prune_run(store, Keep.of("last:2"), dry=True)
    assert store.place.sizes() == before
    assert prune_run(store, Keep.of("last:2")) == goes
    after = store.place.sizes()
    gone = [size for key, size in before.items() if key not in after]
    assert goes == LetGo((1, 2), sum(gone))
    assert prune_run(store, Keep.of("last:2")) == LetGo((), 0)


def test_whenever_a_pruning_dies_the_run_is_whole_and_the_next_one_ends_it(small, same) -> None:
    start = small.train(small.create("start", rounds=4), 4)
    place, pruned = small.create("dying").path, set()

    def anew() -> None:
        shutil.rmtree(place)
        shutil.copytree(start.path, place)

    def work(dying: LocalPlace) -> None:
        prune_run(RoundStore(dying), Keep.of("last:2"))

    def there() -> set[str]:
        return {key for key in LocalPlace(place).sizes() if not key.startswith("commits/leases")}

    anew()
    work(LocalPlace(place))
    expected = there()
    for key in each_death(place, work, anew):
        store = RoundStore(place)
        for round in (0, 3, 4):
            assert same(store.tensors.read_state(round), small.state(round))
        for round in (1, 2):
            try:
                assert same(store.tensors.read_update(round, 1), small.update(round, 1))
            except RoundPruned:
                pruned.add(key)
        # No other writer's claim would be missing: here those of the dead were taken away.
        assert {each for each in named(place) if "leases" not in each} == set(), key
        work(LocalPlace(place))
        assert there() == expected
        assert recover(RoundStore(place)) == (4, [])
    assert len(pruned) > 2


def test_a_run_with_a_damaged_end_is_not_pruned(tiny, flip) -> None:
    """The rounds before may be all there is to go on from."""
    store = tiny.train(tiny.create(), 3)
    flip(store.path / "params/scale/c/3")
    with pytest.raises(StoreDamaged, match=r"round 3 of .* is damaged; `roundweave resume` first, then prune"):
        prune_run(store, Keep.of("last:1"))
    assert store.place.names("updates/float32/c") == ["1", "2", "3"]


def test_how_the_last_writer_ended_stays_said(tiny) -> None:
    store = tiny.train(tiny.create(rounds=5), 3)
    with pytest.raises(RoundFailed), hold_lease(store.place, "mine"):
        raise RoundFailed("a partition is empty")
    prune_run(store, Keep.of("last:1"))
    assert (Run(store.path).status, Run(store.path).failure) == ("failed", "a partition is empty")


def test_a_run_whose_end_was_damaged_goes_on_from_what_was_kept(tiny, flip, same) -> None:
    """The rounds after are done again, and were then not pruned."""
    store = tiny.train(tiny.create(rounds=5), 5)
    prune_run(store, Keep.of("every:2"))
    flip(store.path / "params/scale/c/5")
    assert recover(store) == (4, [5])
    assert store.tensors.pruned().rounds == {1, 3}
    store.commit(tiny.write(store, 5))
    assert same(store.tensors.read_update(5, 0), tiny.update(5, 0))
    flip(store.path / "params/scale/c/5")
    flip(store.path / "params/scale/c/4")
    flip(store.path / "params/scale/c/2")
    assert recover(store) == (0, [1, 2, 3, 4, 5])
    assert store.tensors.pruned() == Pruned()
    assert same(tiny.train(store, 3).tensors.read_update(1, 0), tiny.update(1, 0))


def test_a_record_of_what_was_pruned_that_was_changed_is_not_believed(tiny) -> None:
    """It cannot pass off as pruned what was lost, and is quarantined when the run goes on."""
    store = tiny.train(tiny.create(rounds=5), 5)
    prune_run(store, Keep.of("last:2"))
    record = store.path / "commits/pruned.json"
    written = record.read_bytes()
    value = json.loads(written)
    for wrong in ({"states": [[1, 4]]}, {"carried": [[1, 1]]}, {"newest": 4}, {"chain": "0" * 64}, {"digest": ""}):
        record.write_text(json.dumps(value | wrong))
        with pytest.raises(StoreDamaged, match=r"pruned\.json is no record of what was pruned"):
            store.tensors.read_state(1)
        assert (store.tensors.read_state(5).round, store.tensors.read_update(4, 0).weight) == (5, 10)  # as ever
    for content in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, written.replace(b"[1, 3]", b"[1, 99999999999]")):
        record.write_bytes(content)
        with pytest.raises(StoreDamaged, match="is no record of what was pruned"):
            store.tensors.pruned()
    assert recover(store) == (5, [])
    assert not record.exists()
    assert len(list(record.parent.glob("pruned-damaged-*.json"))) == 1
    prune_run(store, Keep.of("last:2"))
    assert record.read_bytes() == written


@settings(max_examples=6)
@given(steps=st.lists(st.tuples(st.integers(0, 2), KEEPS, st.integers(0, 25)), max_size=5), data=st.data())
def test_whatever_is_kept_and_wherever_it_dies_the_run_goes_on_from_its_last_round(
    small_in, tmp_path_factory, same, steps, data
) -> None:
    small = small_in(tmp_path_factory.mktemp("any"))
    store, done, carry_from = small.create(rounds=12), 0, {}
    for more, keep, death in steps:
        for round in range(done + 1, done + more + 1):
            carry_from = carry_from | dict.fromkeys(data.draw(st.sets(st.integers(0, 1))), round)
            store.commit(small.write(store, round, carry_from=carry_from))
        done += more
        with suppress(Killed):
            prune_run(RoundStore(Dying(store.path, death)), keep)
        bury(store.path)
        assert newest_sound(store) == done
        if data.draw(st.booleans()):
            assert recover(store) == (done, [])
        assert same(store.tensors.read_state(done), small.state(done))
        for partition, source in carry_from.items():
            assert same(store.tensors.read_update(source, partition), small.update(source, partition))
