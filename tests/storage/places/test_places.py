"""What every place promises, whatever it is made of."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import PlaceError, PlaceTaken, StoreDamaged, StoreError, UsageError
from roundweave.storage.places.base import Place
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.places.schemes import SCHEMES, place_of

PLACES: dict[str, Callable[[Path], Place]] = {"local": LocalPlace, "an address": place_of}


@pytest.fixture(params=[*PLACES, "s3"])
def place(request, tmp_path) -> Place:
    if request.param == "s3":
        return place_of(f"{request.getfixturevalue('s3').bucket()}/deep/place")
    return PLACES[request.param](tmp_path / "place")


def content(place: Place, key: str) -> bytes | None:
    found = place.read(key)
    return None if found is None else bytes(found)


@given(pieces=st.lists(st.binary(max_size=50), max_size=4), durable=st.booleans())
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_written_is_read(place, pieces, durable) -> None:
    place.delete("")
    place.write("deep/down/a", *pieces, durable=durable)
    assert place.create("b", *map(memoryview, pieces), durable=durable)
    place.stream("deep/c", iter(pieces), durable=durable)
    assert content(place, "deep/down/a") == content(place, "b") == content(place, "deep/c") == b"".join(pieces)


def test_a_stream_that_breaks_off_leaves_what_was_there(place) -> None:
    def pieces():
        yield b"half"
        raise KeyError("no more")

    place.write("a", b"whole")
    for key in ("a", "b"):
        with pytest.raises(KeyError):
            place.stream(key, pieces())
    assert (place.names(), content(place, "a")) == (["a"], b"whole")


def test_a_place_is_empty_at_first(place) -> None:
    assert (place.names(), place.names("a"), place.read("a"), place.has("a")) == ([], [], None, False)
    place.delete("a")
    place.sweep()


def test_writing_replaces_and_creating_does_not(place) -> None:
    place.write("a", b"one")
    place.write("a", b"2")
    assert content(place, "a") == b"2"
    assert not place.create("a", b"three")
    assert content(place, "a") == b"2"
    assert place.names() == ["a"]


def test_a_part_is_read(place) -> None:
    place.write("deep/a", b"0123456789")
    read = {at: bytes(place.read_part("deep/a", *at)) for at in ((0, 3), (4, 2), (8, 9), (10, 1))}
    assert read == {(0, 3): b"012", (4, 2): b"45", (8, 9): b"89", (10, 1): b""}
    assert place.read_part("deep/b", 0, 1) is None
    assert place.read_part("deep", 0, 1) is None


def test_sizes_are_those_of_all_contents_below(place) -> None:
    assert place.sizes() == {}
    for key, size in {"b/2/x": 3, "b/10": 0, "a": 5}.items():
        place.write(key, b"_" * size)
    assert place.sizes() == {"a": 5, "b/10": 0, "b/2/x": 3}


def test_what_is_gone_while_the_sizes_are_looked_up_hides_nothing_else(tmp_path, monkeypatch) -> None:
    place, look = LocalPlace(tmp_path), os.lstat
    for key in ("a", "b", "c/d"):
        place.write(key, b"_")

    def late(name: str, dir_fd: int | None = None) -> os.stat_result:
        if name == "a" and dir_fd is not None:
            os.unlink(name, dir_fd=dir_fd)
        return look(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "lstat", late)
    assert place.sizes() == {"b": 1, "c/d": 1}


def test_names_are_those_that_come_next(place) -> None:
    for key in ("b/2/x", "b/10", "b/1", "a", "bc"):
        place.write(key, b"")
    assert place.names() == ["a", "b", "bc"]
    assert place.names("b") == ["1", "10", "2"]
    assert (place.has("b/1"), place.has("b"), place.has("b/2/x"), place.has("b/3")) == (True, False, True, False)
    assert place.names("a") == []
    assert place.read("b") is place.read("a/1") is None


def test_deleting_takes_what_is_under_a_prefix_and_nothing_else(place) -> None:
    for key in ("a/1", "a/2/x", "ab", "b"):
        place.write(key, b"")
    place.delete("a")
    place.delete("b")
    assert place.names() == ["ab"]


def test_deleting_names_takes_these_and_nothing_below_or_beside(place) -> None:
    for key in ("a/1", "a/2", "a/3", "b/1"):
        place.write(key, b"")
    place.delete_names("a", ["1", "3"])
    place.delete_names("c", ["1"])
    assert sorted(place.sizes()) == ["a/2", "b/1"]
    with pytest.raises(StoreError, match="leads out of"):
        place.delete_names("a", ["../b/1"])
    assert sorted(place.sizes()) == ["a/2", "b/1"]


def test_a_read_content_can_be_written_to(place) -> None:
    place.write("a", b"abc")
    found = place.read("a")
    found[0] = 0
    assert content(place, "a") == b"abc"


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/etc/passwd", "a/.."])
def test_a_key_that_leads_out_is_refused(place, key) -> None:
    for refused in (place.read, place.write, place.create, place.delete, place.names, place.has):
        with pytest.raises(StoreError, match="leads out of"):
            refused(key)
    place.write("a..b/c", b"")


def test_no_more_is_read_than_belongs_there(place) -> None:
    place.write("a", b"abc")
    assert bytes(place.read("a", most=3)) == b"abc"
    with pytest.raises(StoreDamaged, match="a has 3 bytes, where at most 2 belong"):
        place.read("a", most=2)


def test_a_place_travels_and_its_text_is_its_address(place) -> None:
    place.write("a", b"x")
    assert pickle.loads(pickle.dumps(place)) == place == place_of(str(place)) == place_of(place)


def test_what_is_made_aside_comes_at_once_or_never(place) -> None:
    with place.aside() as partial:
        partial.write("a/b", b"x")
        assert place.names() == []
    assert content(place, "a/b") == b"x"
    with pytest.raises(PlaceTaken, match="exists already"), place.aside() as partial:
        partial.write("c", b"y")
    assert place.names() == ["a"]


def test_a_making_that_fails_leaves_nothing(place, tmp_path) -> None:
    def fail() -> None:
        with place.aside() as partial:
            partial.write("a", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert place.names() == []
    assert list(tmp_path.iterdir()) == []


RACES = 50


def race(place: Place, number: int, start, results) -> None:
    won = []
    for key in range(RACES):
        start.wait()
        won.append(place.create(f"deep/{key}", str(number).encode() * 10_000))
    results.put((number, won))


def test_of_several_processes_exactly_one_creates_each_content(place) -> None:
    # The client of a bucket has threads, which a fork does not take along.
    context = multiprocessing.get_context("fork" if isinstance(place, LocalPlace) else "spawn")
    start, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=race, args=(place, n, start, results)) for n in range(3)]
    for process in processes:
        process.start()
    won = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    for key in range(RACES):
        winners = [number for number in won if won[number][key]]
        assert len(winners) == 1
        assert content(place, f"deep/{key}") == str(winners[0]).encode() * 10_000
    assert len(place.names("deep")) == RACES


# The local disk.


def using(place: Place, key: str) -> dict[str, Callable[[], object]]:
    """Every way to use a key."""
    return {
        "read": lambda: place.read(key),
        "has": lambda: place.has(key),
        "names": lambda: place.names(key),
        "write": lambda: place.write(key, b"climbed"),
        "create": lambda: place.create(key, b"climbed"),
        "delete": lambda: place.delete(key),
    }


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside the place, with a file."""
    folder = tmp_path / "victim"
    (folder / "deep").mkdir(parents=True)
    (folder / "file").write_bytes(b"mine")
    return folder


@pytest.mark.parametrize("way", ["read", "has", "names", "write", "create", "delete"])
@pytest.mark.parametrize("key", ["link/file", "link/new", "link/deep/new", "down/link/file", "down/link/deep"])
def test_no_link_on_the_way_is_followed(tmp_path, victim, way, key) -> None:
    place = LocalPlace(tmp_path / "place")
    place.write("down/a", b"")
    for name in ("link", "down/link"):
        (tmp_path / "place" / name).symlink_to(victim)
    before = sorted(victim.rglob("*"))
    with pytest.raises(StoreError, match="link is a link, which may lead anywhere"):
        using(place, key)[way]()
    assert sorted(victim.rglob("*")) == before
    assert (victim / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("way", ["read", "has", "write", "create", "delete"])
def test_a_link_in_place_of_a_file_is_not_followed(tmp_path, victim, way) -> None:
    place = LocalPlace(tmp_path / "place")
    place.write("a", b"")
    (tmp_path / "place" / "link").symlink_to(victim / "file")
    use = using(place, "link")[way]
    if way in ("read", "has"):
        with pytest.raises(StoreError, match="link is a link, which may lead anywhere"):
            use()
    else:
        assert use() is not True
    assert (victim / "file").read_bytes() == b"mine"
    assert sorted(path.name for path in victim.iterdir()) == ["deep", "file"]


def test_deleting_a_folder_leaves_what_its_links_lead_to(tmp_path, victim) -> None:
    place = LocalPlace(tmp_path / "place")
    place.write("a/b", b"")
    (tmp_path / "place" / "a" / "link").symlink_to(victim)
    (victim / "x.partial").touch()
    place.sweep()
    place.delete("a")
    assert place.names() == []
    assert sorted(path.name for path in victim.iterdir()) == ["deep", "file", "x.partial"]


def test_a_place_may_itself_be_reached_by_a_link(tmp_path) -> None:
    LocalPlace(tmp_path / "place").write("a/b", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "place")
    place = LocalPlace(tmp_path / "link")
    place.write("a/c.partial", b"")
    assert (content(place, "a/b"), place.names("a")) == (b"x", ["b"])
    place.sweep()
    assert [path.name for path in (tmp_path / "place" / "a").iterdir()] == ["b"]


def test_what_is_no_file_is_not_read(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    place = LocalPlace(tmp_path)
    assert (place.read("pipe"), place.has("pipe")) == (None, False)


def test_half_written_files_are_not_there_and_are_swept(tmp_path) -> None:
    place = LocalPlace(tmp_path)
    place.write("block.partial/a", b"x")
    for folder in (tmp_path, tmp_path / "block.partial"):
        (folder / ".0123.partial").write_bytes(b"cut")
    assert place.names("block.partial") == ["a"]
    place.sweep()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "block.partial"]


def test_a_claim_that_another_writer_swept_is_made_once_more(tmp_path, monkeypatch) -> None:
    place, link, swept = LocalPlace(tmp_path), os.link, []

    def swept_before(*arguments: Any, **options: Any) -> None:
        if not swept:
            place.sweep()
            swept.append(True)
        link(*arguments, **options)

    monkeypatch.setattr("roundweave.storage.places.local.os.link", swept_before)
    assert place.create("writer/1", b"mine", durable=True)
    assert not place.create("writer/1", b"another's")
    assert content(place, "writer/1") == b"mine"
    assert [path.name for path in (tmp_path / "writer").iterdir()] == ["1"]


@pytest.mark.parametrize("method", ["write", "create"])
def test_a_disk_that_fails_leaves_what_was_there(tmp_path, monkeypatch, method) -> None:
    place = LocalPlace(tmp_path)
    place.write("a", b"before")

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr("roundweave.storage.places.local.os.fsync", full)
        getattr(place, method)("a", b"after", durable=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert content(place, "a") == b"before"


def test_the_longest_name_can_be_written(tmp_path) -> None:
    place = LocalPlace(tmp_path)
    place.write("n" * 255, b"x")
    assert place.names() == ["n" * 255]


def test_where_a_file_is_in_the_way_nothing_is_created(tmp_path) -> None:
    place = LocalPlace(tmp_path)
    place.write("a", b"")
    for write in (place.write, place.create):
        with pytest.raises(OSError, match="a"):
            write("a/b", b"x")


# Schemes.


@pytest.mark.parametrize(
    "address", ["ftp://bucket/runs", "FTP://bucket", "ftp:/bucket", Path("ftp://bucket/runs")]
)
def test_an_unknown_scheme_is_refused_in_one_line_and_nothing_is_made(tmp_path, monkeypatch, address) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^[^\n]*there are no places of scheme ftp://; give a folder or s3://$"):
        place_of(address)
    assert list(tmp_path.iterdir()) == []


def test_a_scheme_in_the_table_makes_the_place(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(SCHEMES, "mem", lambda address: LocalPlace(tmp_path / address.removeprefix("mem://")))
    assert place_of("mem://a") == LocalPlace(tmp_path / "a")
    with pytest.raises(UsageError, match="give a folder or s3://, mem://"):
        place_of("ftp://a")


@pytest.mark.parametrize("address", ["runs", "/tmp/a:b/c", "a:b", "C:/runs", "./s3:", "a b://c"])
def test_a_path_is_a_folder(address) -> None:
    assert place_of(address) == place_of(Path(address)) == LocalPlace(Path(address))


# What the system refuses.


def test_what_cannot_be_written_is_one_clear_line(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    under = LocalPlace(tmp_path / "file")
    for act in (lambda: under.write("a", b""), lambda: under.create("a", b""), under.make):
        with pytest.raises(PlaceError, match=r"cannot write .*file.*: .*; name a folder") as refused:
            act()
        assert isinstance(refused.value, OSError)
    with pytest.raises(PlaceError, match=r"cannot write .*; name a folder"), LocalPlace(under.path / "b").aside():
        pass
    for act in (LocalPlace(tmp_path).has, LocalPlace(tmp_path).read, LocalPlace(tmp_path).names):
        with pytest.raises(PlaceError, match=r"cannot read .*: File name too long; give it a shorter name"):
            act("n" * 300)


def test_a_place_with_the_longest_name_there_is_can_be_made(tmp_path) -> None:
    with LocalPlace(tmp_path / ("n" * 255)).aside() as aside:
        aside.write("a", b"x")
    assert content(LocalPlace(tmp_path / ("n" * 255)), "a") == b"x"


def test_to_make_a_place_leaves_nothing_in_it(tmp_path) -> None:
    place = LocalPlace(tmp_path / "deep" / "down")
    place.make()
    place.make()
    assert place.path.is_dir()
    assert list(place.path.iterdir()) == []
