"""Verifying a run: each flipped bit and each file that is missing, added or edited is named, and nothing else."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from roundweave.storage.errors import StoreError, UsageError
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.recovery import recover
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.upkeep.verifying.verify import Finding, verify
from roundweave.storage.values.digests import NOTHING_KEPT
from tests.storage.conftest import thorough
from tests.storage.upkeep.dying import Dying, Killed, named

ROUNDS = range(5)
ALONE = re.compile(r"zarr\.json|commits/[0-9]+\.json|(commits|committed|round)/zarr\.json")
"""Files that others are judged by."""


def files(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def kind(key: str) -> str:
    """What a file is, whatever its round and partition."""
    return re.sub(r"[0-9a-f]{12}|[0-9]+", "#", key)


def test_a_run_with_a_file_of_every_kind_is_sound(every) -> None:
    store = every.whole()
    kinds = {kind(key).split("/")[0] for key in files(store.path)}
    assert kinds == {
        *("params", "buffers", "frozen", "memory", "updates", "carry", "permutations", "similarities", "metrics"),
        *("scores", "bookkeeping", "partitions", "round", "committed", "commits", "zarr.json"),
    }
    assert {kind(key) for key in files(store.path) if key.startswith("commits/")} == {
        *("commits/#.json", "commits/damaged-#-#.json", "commits/leases/#.json", "commits/zarr.json"),
        "commits/copied.json",
    }
    seen = verify(store.path)
    assert (seen.findings, seen.notes, seen.rounds, seen.sound) == ((), (), 4, True)
    assert seen.files == len(files(store.path))
    assert seen.bytes == sum((store.path / key).stat().st_size for key in files(store.path))
    assert (
        seen.chain
        == StoredRun(store.path).chain
        == json.loads((store.path / "commits/4.json").read_text())["chain"]
    )
    assert StoredRun(store.path).verify() == seen


def batches(keys: list[str], bits: int) -> list[dict[str, int]]:
    """So many random bits, each of a file and at a share of it, in batches of files that are judged apart."""
    generator = random.Random(0)
    together: list[dict[str, int]] = []
    alone: list[dict[str, int]] = []
    for _ in range(bits):
        key, bit = generator.choice(keys), generator.getrandbits(64)
        room = [batch for batch in together if len(batch) < 25 and key not in batch]
        if ALONE.fullmatch(key) or not room:
            (alone if ALONE.fullmatch(key) else together).append({key: bit})
        else:
            room[0][key] = bit
    return together + alone


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_each_random_flip_is_named_and_none_changes_in_silence_what_a_run_says(every, answers, count) -> None:
    path = every.whole().path
    before = answers(path, ROUNDS)
    assert not any(isinstance(answer, StoreError) for answer in before.values())
    flips = batches(files(path), count)
    assert sum(map(len, flips)) == count
    for batch in flips:
        contents = {key: (path / key).read_bytes() for key in batch}
        for key, bit in batch.items():
            flipped = bytearray(contents[key])
            flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
            (path / key).write_bytes(flipped)
        assert named(path) == batch.keys()
        after = answers(path, ROUNDS)
        # A round of which the record is damaged is lost, and the run says so.
        told = bool(after["lost"])
        assert told == any(re.fullmatch(r"commits/[0-9]+\.json", key) for key in batch) or isinstance(
            after["lost"], StoreError
        )
        for what, answer in after.items():
            of_a_round = what[-1].isdigit()
            assert answer == before[what] or isinstance(answer, StoreError) or (told and not of_a_round), what
        for key, content in contents.items():
            (path / key).write_bytes(content)
    assert verify(path).sound


def test_a_missing_tensor_is_told_with_its_path_once_and_the_result_is_told_line_by_line(tiny) -> None:
    path = tiny.train(tiny.create(), 2).path
    count, size = len(files(path)), sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    assert str(verify(path)) == f"sound; 2 rounds, {count} files, {size:,} bytes"
    size -= (path / "params/scale/c/1").stat().st_size
    (path / "params/scale/c/1").unlink()
    (path / "commits/.0123456789abcdef.partial").touch()
    assert str(verify(path)).splitlines() == [
        "params/scale/c/1: it is missing; restore the file from a copy",
        "note: commits/.0123456789abcdef.partial: it is half-written, by a writer that is at work or was killed",
        f"1 found; 2 rounds, {count} files, {size:,} bytes",
    ]


def test_a_missing_file_is_named(every) -> None:
    path = every.whole().path
    # That a record was quarantined, and that numbers were copied, is told by the file itself.
    keys = [key for key in files(path) if not key.startswith(("commits/damaged", "commits/copied"))]
    together = [key for key in keys if not ALONE.fullmatch(key)]
    for missing in [
        *(together[first::12] for first in range(12)),
        *([key] for key in keys if ALONE.fullmatch(key)),
    ]:
        contents = {key: (path / key).read_bytes() for key in missing}
        for key in missing:
            (path / key).unlink()
        assert named(path) >= contents.keys()
        for key, content in contents.items():
            (path / key).write_bytes(content)
    assert verify(path).sound


ADDED = (
    *("x", "params/x", "params/new/zarr.json", "params/fc.weight/c/1/0/1", "params/fc.weight/c/01/0/0"),
    *("params/fc.weight/c/9/0/0", "updates/float32/c/1/2/0", "updates/float32/c/0/0/0", "frozen/table/c/1/0"),
    *("metrics/new/zarr.json", "metrics/new/c/0/0", "metrics/train_loss/c/1/0", "scores/loss/c/1"),
    *("committed/c/1", "round/c/1", "commits/c/0", "commits/01.json", "commits/5.json.bak", "commits/x.json"),
    *("commits/damaged-9-0123456789ab.json", "commits/leases/9.json", "commits/leases/x", "partitions/0/c/1"),
    *("partitions/01/c/0", "params/.partial", "params/.x.partial", "permutations/fc/c/0/0/0"),
)


def test_added_files_are_named(every) -> None:
    path = every.whole().path
    for key in ADDED:
        LocalPlace(path).write(key, b"added")
    assert set(ADDED) <= named(path)
    for key in ADDED:
        (path / key).unlink()
    assert verify(path).sound


def test_links_and_what_lies_behind_them_are_named(every, tmp_path) -> None:
    path = every.whole().path
    linked = ("params/fc.weight/c/1/0/0", "commits/2.json", "scores/loss/c/0", "commits/leases/1.json")
    for keys in (linked, ("zarr.json",)):
        for key in keys:
            shutil.move(path / key, tmp_path / key.replace("/", "-"))
            (path / key).symlink_to(tmp_path / key.replace("/", "-"))
        assert {*keys} <= named(path)


def forge(file: Path) -> None:
    """Edit a chunk with its checksum."""
    edited = bytes(255 - byte for byte in file.read_bytes()[:-4])
    file.write_bytes(edited + google_crc32c.value(edited).to_bytes(4, "little"))


def test_chunks_that_were_edited_with_their_checksums_are_named(every) -> None:
    path = every.whole().path
    kinds = {kind(key): key for key in files(path) if re.search(r"/c(/[0-9]+)*$", key)}
    for key in kinds.values():
        forge(path / key)
    assert len(kinds) > 30
    assert {*kinds.values()} <= named(path)


EDITED = (
    *(("zarr.json", '"created": 1.0', '"created": 2.0'), ("zarr.json", "{", "{ ")),
    *(("commits/zarr.json", "5", "6"), ("params/fc.weight/zarr.json", "5", "4")),
    *(("committed/zarr.json", "5", "2"), ("updates/float32/zarr.json", "5", "1")),
    *(("metrics/train_loss/zarr.json", "NaN", "Infinity"), ("partitions/1/zarr.json", "20", "19")),
    ("params/zarr.json", '"attributes": {}', '"attributes": {"a": 1}'),
    *(("params/coarse/zarr.json", "bfloat16", "bfloat17"), ("commits/2.json", '"loss": 0.5', '"loss": 0.4')),
    ("commits/leases/2.json", "writer4", "writer5"),
)


def test_an_edited_description_record_or_claim_is_named(every) -> None:
    path = every.whole().path
    before = StoredRun(path).rounds
    for key, old, new in EDITED:
        text = (path / key).read_text()
        assert old in text
        (path / key).write_text(text.replace(old, new, 1))
        assert named(path) == {key}
        if key != "zarr.json":
            assert StoredRun(path).rounds == before
        (path / key).write_text(text)


def test_a_record_that_another_history_follows_is_named(every) -> None:
    """The same round with another score, made by whoever can make chains, but for those that follow."""
    store, other = every.whole(), every.create("other")
    shutil.copytree(store.path, other.path, dirs_exist_ok=True)
    for round in (2, 3, 4):
        (other.path / f"commits/{round}.json").unlink()
    forged = RoundStore(other.path)
    forged.commit(every.write(forged, 2, seconds=1.0))
    shutil.copy(other.path / "commits/2.json", store.path / "commits/2.json")
    assert "commits/2.json" in named(store.path)


def test_any_chain_of_the_history_vouches_for_its_rounds(every) -> None:
    store = every.whole()
    chains = {round: store.log.chain(round) for round in ROUNDS}
    assert {round: verify(store.path, chain).vouched for round, chain in chains.items()} == {r: r for r in ROUNDS}
    assert all(verify(store.path, chain).sound for chain in chains.values())
    store = every.rounds(RoundStore(store.path), 5, 6, 6)
    assert verify(store.path, chains[4]).vouched == 4
    (store.path / "commits/1.json").unlink()
    assert verify(store.path, chains[1]).vouched == 1  # the next record tells it


def test_a_chain_of_no_round_is_a_finding_and_what_is_none_is_refused(every) -> None:
    store = every.whole()
    other = every.create("other", created=2.0).log.chain(0)
    seen = verify(store.path, other)
    assert seen.vouched is None
    assert seen.findings == (
        Finding("commits/4.json", f"its chain is {seen.chain}; {other} is that of no round of this history"),
    )
    for nonsense in ("", "abc", other[:-1], other.upper(), other + "\n"):
        with pytest.raises(UsageError, match="is no chain, which has 64 hexadecimal digits"):
            verify(store.path, nonsense)


def killed_at(every, calls: int) -> bool:
    """Whether a writer was killed before this change of the folder: of a damaged run that goes on, longer."""
    master = every.folder / "master.zarr"
    if not master.exists():
        every.rounds(every.create("master", rounds=2), 1, 2, 2)
        record = master / "commits/2.json"
        record.write_text(record.read_text()[:-1])
    path = master.with_name(f"{calls}.zarr")
    shutil.copytree(master, path)
    try:
        every.rounds(RoundStore(Dying(path, calls)), 2, 3, 3)
    except Killed:
        # Until it is quarantined the damaged record is there.
        assert named(path) <= {"commits/2.json"}
        return True
    assert (named(path), StoredRun(path).done) == (set(), 3)
    return False


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_is_sound_wherever_its_writer_was_killed(every, step) -> None:
    calls = 0
    while killed_at(every, calls):
        calls += step
    assert calls > (130 if every.schema.shard == 1 else 110)


def test_what_a_killed_writer_left_is_noted_and_gone_when_the_run_has_gone_on(every) -> None:
    store = every.rounds(every.create(rounds=4), 1, 2, 4)
    every.write(store, 3)
    (store.path / "params/.0123456789abcdef.partial").write_bytes(b"half")
    seen = verify(store.path)
    assert seen.sound
    assert {note.what.partition(";")[0] for note in seen.notes} == {
        "it is half-written, by a writer that is at work or was killed",
        "it is of round 3, which is not committed",
        "no committed round uses this split yet",
    }
    store = every.rounds(RoundStore(store.path), 3, 4, 4)
    seen = verify(store.path)
    assert (seen.findings, seen.notes) == ((), ())


def test_a_run_is_sound_while_it_is_written(every) -> None:
    store = every.rounds(every.create(rounds=12), 1, 1, 12)
    seen = []
    writer = threading.Thread(target=every.rounds, args=(store, 2, 12, 35))
    writer.start()
    while writer.is_alive():
        seen.append(verify(store.path))
    writer.join()
    assert [finding for each in seen for finding in each.findings] == []
    assert len({each.rounds for each in seen}) > 3
    assert (verify(store.path).rounds, verify(store.path).notes) == (12, ())


@pytest.mark.parametrize("done", ["begun", "ended"])
@pytest.mark.parametrize("key", ["params/zarr.json", *thorough("round/zarr.json")])
def test_a_run_that_is_made_longer_just_then_is_sound(every, done, key) -> None:
    """While its documents are read."""
    store = every.rounds(every.create(rounds=4), 1, 2, 4)

    class Extending(LocalPlace):
        def read(self, asked, most=None):
            if asked == key and not extended:
                extended.append(writing.enter_context(hold_lease(store.place, "other", 9)))
                longer = RoundStore(store.path, rounds=9)
                longer.tensors.describe()
                if done == "ended":
                    recover(longer)
            return super().read(asked, most)

    extended = []
    with ExitStack() as writing:
        assert verify(Extending(store.path)).findings == ()
    assert extended


def test_an_update_of_which_nothing_is_kept_is_not_missing(tiny) -> None:
    """What a map returned had not the shape to be stored: the guard refuses it and keeps nothing."""
    store = tiny.create()
    commit = tiny.write(store, 1)
    for path in store.schema.vectors(1):
        store.place.delete(f"{path}/c/1/1")
    refused = UpdateRecord(NOTHING_KEPT, 0, "direction is misshapen")
    store.commit(replace(commit, updates={0: commit.updates[0], 1: refused}))
    assert verify(store.path).findings == ()
    assert (
        StoredRun(store.path).round(1).update(1).direction,
        StoredRun(store.path).round(1).update(1).weight,
    ) == ({}, 0)


def test_what_resuming_meets_is_mended(every, same) -> None:
    """Splits, numbers and descriptions that were edited or added."""
    store = every.whole()
    whole = {key: (store.path / key).read_bytes() for key in files(store.path) if key != "commits/copied.json"}
    described = ("metrics/train_loss", "partitions", "scores/loss", "commits")
    for key in (f"{array}/zarr.json" for array in described):
        (store.path / key).write_text("{}")
    for key in ("metrics/train_loss/c/0/0", "bookkeeping/seconds/c/0", "committed/c/0", "partitions/1/c/0"):
        forge(store.path / key)
    for key in ("metrics/added/zarr.json", "metrics/train_loss/c/7/0", "partitions/9/c/0"):
        LocalPlace(store.path).write(key, b"added")
    store = RoundStore(store.path)
    with hold_lease(store.place, "mine", 4):
        recover(store)
        for number in (0, 1):
            store.splits.write(number, every.owners)
    assert {key: (store.path / key).read_bytes() for key in whole} == whole
    assert verify(store.path).findings == ()
