"""Verifying a run: each flipped bit and each file that is missing, added or edited is named, and nothing else."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from operator import methodcaller
from pathlib import Path

import google_crc32c
import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import StoreDamaged, StoreError, UsageError
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.recovery import recover
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


@contextmanager
def whole_again(path: Path, keys: Iterable[str]) -> Iterator[dict[str, bytes]]:
    """Harm some files, of which this gives the content; after that they are as they were."""
    before = {key: (path / key).read_bytes() for key in keys}
    yield before
    for key, content in before.items():
        (path / key).write_bytes(content)


def test_a_run_with_a_file_of_every_kind_is_sound(every) -> None:
    store = every.whole()
    assert {kind(key).split("/")[0] for key in files(store.path)} == {
        *("params", "buffers", "frozen", "memory", "updates", "carry", "permutations", "similarities", "metrics"),
        *("scores", "bookkeeping", "partitions", "round", "committed", "commits", "zarr.json"),
    }
    kinds = {kind(key) for key in LocalPlace(store.path / "commits").sizes()}
    assert kinds == {"#.json", "damaged-#-#.json", "leases/#.json", "zarr.json"}
    seen = verify(store.path)
    assert (seen.findings, seen.notes, seen.rounds, seen.sound) == ((), (), 4, True)
    assert seen.files == len(files(store.path))
    assert seen.bytes == sum((store.path / key).stat().st_size for key in files(store.path))
    run = Run(store.path)
    assert seen.chain == run.chain == json.loads((store.path / "commits/4.json").read_text())["chain"]
    assert run.verify() == seen


def batches(keys: list[str], bits: int) -> list[dict[str, int]]:
    """So many random bits, each of a file and at a share of it, in batches of files that are judged apart."""
    generator = random.Random(0)
    flips = [(generator.choice(keys), generator.getrandbits(64)) for _ in range(bits)]
    together = [flip for flip in flips if not ALONE.fullmatch(flip[0])]
    alone = [{key: bit} for key, bit in flips if ALONE.fullmatch(key)]
    return [dict(together[first : first + 25]) for first in range(0, len(together), 25)] + alone


@pytest.mark.parametrize("bits", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_each_random_flip_is_named_and_none_changes_in_silence_what_a_run_says(every, answers, bits) -> None:
    path = every.whole().path
    before = answers(path, ROUNDS)
    assert not any(isinstance(answer, StoreError) for answer in before.values())
    for batch in batches(files(path), bits):
        with whole_again(path, batch) as whole:
            for key, bit in batch.items():
                flipped = bytearray(whole[key])
                flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
                (path / key).write_bytes(flipped)
            assert named(path) == batch.keys()
            after = answers(path, ROUNDS)
        # A round of which the record is damaged is lost, and the run says so.
        told = bool(after["lost"])
        hit = any(re.fullmatch(r"commits/[0-9]+\.json", key) for key in batch)
        assert told == hit or isinstance(after["lost"], StoreError)
        for what, answer in after.items():
            of_a_round = what[-1].isdigit()
            assert answer == before[what] or isinstance(answer, StoreError) or (told and not of_a_round), what
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
    # That a record was quarantined is told by the file itself.
    keys = [key for key in files(path) if not key.startswith("commits/damaged")]
    together = [key for key in keys if not ALONE.fullmatch(key)]
    for missing in [*(together[first::5] for first in range(5)), *([key] for key in keys if ALONE.fullmatch(key))]:
        with whole_again(path, missing):
            for key in missing:
                (path / key).unlink()
            assert named(path) >= {*missing}
    assert verify(path).sound


ADDED = (
    *("x", "params/x", "params/new/zarr.json", "params/fc.weight/c/1/0/1", "params/fc.weight/c/01/0/0"),
    *("params/fc.weight/c/9/0/0", "updates/float32/c/1/2/0", "updates/float32/c/0/0/0", "frozen/table/c/1/0"),
    *("metrics/new/zarr.json", "metrics/new/c/0/0", "metrics/train_loss/c/1/0", "scores/loss/c/1"),
    *("committed/c/1", "round/c/1", "commits/c/0", "commits/01.json", "commits/5.json.bak", "commits/x.json"),
    *("commits/damaged-9-0123456789ab.json", "commits/leases/9.json", "commits/leases/x", "partitions/0/c/1"),
    *("commits/1-3.jsonl", "commits/0-3.jsonl", "commits/00-99.jsonl", "commits/6-8.json", "commits/9-1.jsonl"),
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
            (path / key).symlink_to((path / key).rename(tmp_path / key.replace("/", "-")))
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
    before = Run(path).rounds
    for key, old, new in EDITED:
        with whole_again(path, [key]) as whole:
            assert old.encode() in whole[key]
            (path / key).write_bytes(whole[key].replace(old.encode(), new.encode(), 1))
            assert named(path) == {key}
            assert key == "zarr.json" or Run(path).rounds == before


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
    for round, chain in chains.items():
        seen = verify(store.path, chain)
        assert (seen.vouched, seen.sound) == (round, True)
    store = every.rounds(RoundStore(store.path), 5, 6, 6)
    assert verify(store.path, chains[4]).vouched == 4
    (store.path / "commits/1.json").unlink()
    assert verify(store.path, chains[1]).vouched == 1  # the next record tells it


def test_a_chain_of_no_round_is_a_finding_and_what_is_none_is_refused(every) -> None:
    store = every.whole()
    other = every.create("other", created=2.0).log.chain(0)
    seen = verify(store.path, other)
    told = f"its chain is {seen.chain}; {other} is that of no round of this history"
    assert (seen.vouched, seen.findings) == (None, (Finding("commits/4.json", told),))
    for nonsense in ("", "abc", other[:-1], other.upper(), other + "\n"):
        with pytest.raises(UsageError, match="is no chain, which has 64 hexadecimal digits"):
            verify(store.path, nonsense)


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_is_sound_wherever_its_writer_was_killed(every, step) -> None:
    """Of a damaged run that goes on, longer; until it is quarantined the damaged record is there."""
    master = every.rounds(every.create(rounds=2), 1, 2, 2).path
    record = master / "commits/2.json"
    record.write_text(record.read_text()[:-1])
    for number in count(0, step):
        path = shutil.copytree(master, every.folder / f"{number}.zarr")
        try:
            every.rounds(RoundStore(Dying(path, number)), 2, 3, 3)
        except Killed:
            assert named(path) <= {"commits/2.json"}
        else:
            break
    assert (named(path), Run(path).done, number > 110) == (set(), 3, True)


def test_what_a_killed_writer_left_is_noted_and_gone_when_the_run_has_gone_on(every) -> None:
    store = every.rounds(every.create(rounds=4), 1, 2, 4)
    every.write(store, 3)
    (store.path / "params/.0123456789abcdef.partial").write_bytes(b"half")
    assert (seen := verify(store.path)).sound
    half = "it is half-written, by a writer that is at work or was killed"
    others = "it is of round 3, which is not committed", "no committed round uses this split yet"
    assert {note.what.partition(";")[0] for note in seen.notes} == {half, *others}
    seen = verify(every.rounds(RoundStore(store.path), 3, 4, 4).path)
    assert (seen.findings, seen.notes) == ((), ())


def test_a_run_is_sound_while_it_is_written(every) -> None:
    store = every.rounds(every.create(rounds=8), 1, 1, 8)
    seen = []
    writer = threading.Thread(target=every.rounds, args=(store, 2, 8, 35))
    writer.start()
    while writer.is_alive():
        seen.append(verify(store.path))
    writer.join()
    assert [finding for each in seen for finding in each.findings] == []
    assert len({each.rounds for each in seen}) > 2
    assert (verify(store.path).rounds, verify(store.path).notes) == (8, ())


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
    update = Run(store.path).round(1).update(1)
    assert (verify(store.path).findings, update.direction, update.weight) == ((), {}, 0)


def test_what_resuming_meets_is_mended(every, same) -> None:
    """Splits and numbers that were edited or added, and all descriptions but the first, which are empty."""
    store = every.whole()
    whole = {key: (store.path / key).read_bytes() for key in files(store.path)}
    for key in (key for key in whole if key.endswith("/zarr.json")):
        (store.path / key).write_bytes(b"")
    for key in ("metrics/train_loss/c/0", "bookkeeping/seconds/c/0", "committed/c/0", "partitions/1/c/0"):
        forge(store.path / key)
    for key in ("metrics/added/zarr.json", "metrics/train_loss/c/7", "partitions/9/c/0"):
        LocalPlace(store.path).write(key, b"added")
    store = RoundStore(store.path)
    with hold_lease(store.place, "mine", 4):
        recover(store)
        for number in (0, 1):
            store.splits.write(number, every.owners)
    assert {key: (store.path / key).read_bytes() for key in whole} == whole
    assert verify(store.path).findings == ()


# A file that is flipped, missing, cut short or another one is refused by its name, by whoever needs it.

STATE = ["params/fc.weight/c/4/0/0", "params/scale/c/4", "params/coarse/c/4/0", "buffers/norm.count/c/4"]
STATE += ["memory/velocity/coarse/c/4/0", "frozen/table/c/0/0"]
"""Of the newest state."""

UPDATES = ["updates/float32/c/4/{}/0", "updates/extras/control/float32/c/4/{}/0", "carry/variate/float32/c/4/{}/0"]
UPDATES += ["permutations/fc/c/4/{}/0", "similarities/mix/c/4/{}/0"]
"""Of partition 1 in the newest round."""

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


def refused(run: Run, key: str, *reads: Callable[[], object]) -> None:
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
    run, name = Run(store.path), re.sub("^(params|buffers|frozen)/|/c/.*", "", key)
    refused(run, key, lambda: run.round(4).state, lambda: run[name].values, lambda: run.ds[name].values)
    if key.startswith("frozen"):
        with pytest.raises(StoreDamaged, match="no round is whole, not even the initial state"):
            recover(store)
        return
    assert run[name][3].load().notnull().all()
    assert recover(store) == (3, [4])
    assert (store.log.rounds(), len(Run(store.path).damaged)) == ([0, 1, 2, 3], 1)
    every.rounds(store, 4, 4, 4, carry_from={0: 1})
    assert Run(store.path).round(4).state.round == 4


@pytest.mark.parametrize(("key", "harm"), [*rows(UPDATES), ("similarities/mix/c/4/{}/0", "exchanged")])
def test_what_a_partition_sent_is_read_as_it_was_committed_or_not_at_all(every, key, harm) -> None:
    store, kind = every.whole(), key.partition("/")[0]
    read = methodcaller("update" if kind in SHOWN else "match", 1)
    key = key.format(1 if every.schema.shard == 1 else 0)
    HARM[harm](store.path / key)
    run = Run(store.path)
    refused(run, key, lambda: read(run.round(4)), *[lambda: run.tree[SHOWN[kind]].values] * (kind in SHOWN))
    assert read(run.round(3))
    assert recover(store) == ((3, [4]) if harm == "cut" else (4, []))
