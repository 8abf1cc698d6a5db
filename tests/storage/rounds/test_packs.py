"""Packs: each record stays a link of the chain with the same bytes, whatever dies, is flipped or is late."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.flows.stored import Run
from roundweave.storage.errors import StoreDamaged
from roundweave.storage.hierarchy.schema import UNPACKED, VERSION
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds import packs
from roundweave.storage.rounds.store import RoundStore, synced
from roundweave.storage.upkeep.copying import copy_run
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.upkeep.verifying.verify import verify
from tests.storage.upkeep.dying import each_death

PACKED = ["0-2.jsonl", "3-5.jsonl"]
"""The packs of a run of 7 rounds in packs of three, of which round 6 is safe."""


@pytest.fixture(autouse=True)
def threes(monkeypatch) -> None:
    monkeypatch.setattr(packs, "ROUNDS", 3)


def records(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "commits").iterdir() if each.name[0].isdigit())


def contents(path: Path) -> dict[int, bytes]:
    """The bytes of all records by round, as they lie in files of their own."""
    return {int(name.split(".")[0]): (path / "commits" / name).read_bytes() for name in records(path)}


@pytest.fixture(scope="module")
def made(tiny_in, tmp_path_factory) -> Path:
    """A run of 7 rounds with a file for each record."""
    tiny = tiny_in(tmp_path_factory.mktemp("made"))
    return tiny.train(tiny.create(rounds=7), 7).path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "run.zarr"))


@pytest.fixture
def packed(path: Path) -> Path:
    """One whose first six records are in packs."""
    RoundStore(path).log.pack(6)
    return path


def test_records_keep_their_bytes_and_chain_and_what_is_not_safe_keeps_its_file(made, path) -> None:
    before, chain = contents(path), Run(path).chain
    store = RoundStore(path)
    store.log.pack(5)
    assert records(path) == ["0-2.jsonl", *(f"{round}.json" for round in range(3, 8))]
    store.log.pack(6)
    assert records(path) == [*PACKED, "6.json", "7.json"]
    for first, name in zip((0, 3), PACKED, strict=True):
        whole = b"".join(before[round] + b"\n" for round in range(first, first + 3))
        assert (path / "commits" / name).read_bytes().partition(b"\n")[2] == whole
    run = Run(path)
    assert (run.committed, run.lost, run.chain) == (list(range(8)), [], chain)
    assert [run.round(round).commit for round in range(8)] == [Run(made).round(r).commit for r in range(8)]
    assert run.history().equals(Run(made).history())
    seen = verify(path, expect=json.loads(before[1])["chain"])
    assert (seen.findings, seen.notes, seen.vouched, seen.rounds) == ((), (), 1, 7)
    assert recover(RoundStore(path)) == (7, [])
    assert copy_run(RoundStore(path), LocalPlace(path.with_name("copy.zarr"))) == chain
    assert records(path.with_name("copy.zarr")) == records(path)


def test_whenever_packing_dies_each_round_is_whole_and_the_next_writer_ends_it(made, path) -> None:
    def anew() -> None:
        shutil.rmtree(path)
        shutil.copytree(made, path)

    def work(dying: LocalPlace) -> None:
        RoundStore(dying).log.pack(6)

    left = []
    for key in each_death(path, work, anew):
        left.append((key, len(records(path))))
        assert Run(path).committed == list(range(8))
        assert verify(path).findings == ()
        assert recover(RoundStore(path)) == (7, [])
        work(LocalPlace(path))
        assert records(path) == [*PACKED, "6.json", "7.json"]
        assert (verify(path).findings, verify(path).notes) == ((), ())
    # Of the three files that a deletion began with, one is gone.
    assert left == [("commits/0-2.jsonl", 8), ("commits", 8), ("commits/3-5.jsonl", 6), ("commits", 6)]


@given(data=st.data())
@settings(max_examples=4)
def test_a_flipped_bit_of_a_pack_is_named_and_costs_one_round_at_most(made, tmp_path_factory, data) -> None:
    path = Path(shutil.copytree(made, tmp_path_factory.mktemp("flipped") / "run.zarr"))
    packs.ROUNDS = 3  # hypothesis runs all examples within one call of the fixture
    before = contents(path)
    RoundStore(path).log.pack(6)
    pack = path / "commits" / PACKED[1]
    content = bytearray(pack.read_bytes())
    ends = [position for position, byte in enumerate(content) if byte == ord("\n")]
    at = data.draw(st.integers(0, len(content) - 1) | st.sampled_from([*ends, *(end + 1 for end in ends[:-1])]))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    pack.write_bytes(content)
    told = [str(finding) for finding in verify(path).findings]
    assert told and all(finding.startswith(f"commits/{PACKED[1]}: ") for finding in told)
    run, hit = Run(path), 2 + sum(end < at for end in ends)  # the first line has the columns
    assert set(run.lost) <= {hit} - {2} and (run.lost or at in ends or hit == 2)
    assert run.lost or run.history().equals(Run(made).history())
    for round in {*range(8)} - {*run.lost}:
        assert run.round(round).state.round == round
    for round in run.lost:
        assert any(f"its record of round {round} is no commit record" in finding for finding in told)
        with pytest.raises(StoreDamaged, match=rf"commits/3-5\.jsonl: its record of round {round} is no commit"):
            run.round(round)
    assert recover(RoundStore(path)) == (7, run.lost)
    assert len(verify(path).findings) == len(run.lost)
    whole = {round: content for round, content in before.items() if round > 2 and round not in run.lost}
    assert set(records(path)) == {PACKED[0], *(f"{round}.json" for round in whole)}
    assert all((path / f"commits/{round}.json").read_bytes() == content for round, content in whole.items())


@pytest.mark.thorough
def test_what_was_added_to_a_pack_is_found_and_goes(packed) -> None:
    pack = packed / "commits/0-2.jsonl"
    content = pack.read_bytes()
    first, *_ = content.splitlines(keepends=True)
    for added in (content + first, first + content, content + b"\n", content.replace(b"\n", b"\n\n", 1)):
        pack.write_bytes(added)
        told = ["commits/0-2.jsonl: its line breaks or its columns are damaged; `roundweave resume` mends them"]
        assert (Run(packed).lost, [str(each) for each in verify(packed).findings]) == ([], told)
        store = RoundStore(packed)
        assert recover(store) == (7, [])
        store.log.pack(6)
        assert (pack.read_bytes(), verify(packed).sound) == (content, True)


def test_a_state_that_is_lost_takes_its_pack_apart_and_the_rounds_are_done_again(tiny, packed) -> None:
    before = {name: (packed / "commits" / name).read_bytes() for name in records(packed)}
    for round in range(4, 8):
        (packed / f"params/fc.weight/c/{round}/0/0").write_bytes(b"")
    store = RoundStore(packed)
    assert recover(store) == (3, [4, 5, 6, 7])
    assert records(packed) == ["0-2.jsonl", "3.json"]
    assert (Run(packed).done, Run(packed).damaged) == (3, [4, 5, 6, 7])
    for round in range(4, 8):
        store.commit(tiny.write(store, round))
    store.show()
    store.log.pack(6)
    assert {name: (packed / "commits" / name).read_bytes() for name in records(packed)} == before
    assert verify(packed).sound


def test_a_commit_that_comes_after_its_round_was_packed_changes_nothing(tiny, packed) -> None:
    """Of a task that was taken for lost: the same bits at another time, for which the chain has no place."""
    chain, store = Run(packed).chain, RoundStore(packed)
    store.commit(replace(tiny.write(store, 4), seconds=99.0))
    assert "4.json" in records(packed)
    run = Run(packed)
    assert (run.committed, run.chain, run.round(4).commit.seconds) == (list(range(8)), chain, 2.0)
    seen = verify(packed)
    assert [str(note) for note in seen.notes] == [
        "commits/4.json: its record is in a pack, too, and it goes when the run goes on"
    ]
    assert seen.sound
    assert recover(RoundStore(packed)) == (7, [])
    RoundStore(packed).log.pack(6)
    assert records(packed) == [*PACKED, "6.json", "7.json"]


def test_whoever_opened_the_run_before_reads_on_and_so_does_who_opens_it_meanwhile(path) -> None:
    before, run = RoundStore(path), Run(path)
    names = LocalPlace(path).names("commits")
    RoundStore(path).log.pack(6)
    assert [before.log.has(round) for round in range(9)] == [True] * 8 + [False]
    assert [run.round(round).commit.round for round in range(8)] == list(range(8))
    # Names that were listed while others were deleted, and before there was a pack.
    torn = [name for name in names if name not in ("1.json", "2.json", "3.json")]
    assert RoundStore(path).log.rounds(torn) == list(range(8))


@pytest.mark.parametrize("round", [4, 5])
def test_where_a_record_is_damaged_or_missing_all_of_its_pack_stay_in_own_files(path, round) -> None:
    record = path / f"commits/{round}.json"
    record.write_bytes(record.read_bytes()[:-9])
    RoundStore(path).log.pack(6)
    assert records(path) == ["0-2.jsonl", *(f"{number}.json" for number in range(3, 8))]
    record.unlink()
    RoundStore(path).log.pack(6)
    assert Run(path).lost == [round]


@pytest.mark.thorough
@pytest.mark.parametrize("version", [UNPACKED, VERSION])
def test_records_of_a_run_of_the_version_before_stay_in_own_files(tiny, monkeypatch, version) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("roundweave.storage.rounds.store.VERSION", version)
        store = tiny.create(rounds=7)
    store = tiny.train(RoundStore(store.place), 7)
    with synced(store, store.log.read(6)):
        pass
    own = [f"{number}.json" for number in range(8)]
    assert records(store.path) == (own if version == UNPACKED else [*PACKED, *own[6:]])
    assert verify(store.path).sound


def test_a_run_that_is_packed_as_it_goes_has_the_bits_of_one_that_is_not_and_goes_on(train, monkeypatch) -> None:
    fields = {"model": "logistic", "algorithm": "scaffold", "partitions": 2, "local_steps": 1, "cohort": 1}
    whole = train(**fields, rounds=9, name="whole")
    monkeypatch.setattr("roundweave.storage.rounds.store.SYNC_SECONDS", 0.01)
    train(**fields, rounds=5, name="run")
    run = train(**fields, rounds=9, name="run")
    assert run.digest == whole.digest
    assert [name for name in records(run.path) if name.endswith("l")] == ["0-2.jsonl", "3-5.jsonl", "6-8.jsonl"]
    assert verify(run.path).sound
    assert all(run.replay(round).identical for round in (2, 3, 7))
