"""Places on a disk: no link is followed, and what the system refuses is one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from roundweave.storage.errors import PlaceError, StoreError, UsageError
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.places.schemes import SCHEMES, place_of
from tests.contracts.test_places import CHANGES, LOOKS, content


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


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside the place, with a file."""
    folder = tmp_path / "victim"
    (folder / "deep").mkdir(parents=True)
    (folder / "file").write_bytes(b"mine")
    return folder


@pytest.mark.parametrize("way", [*LOOKS, *CHANGES])
def test_no_link_on_the_way_is_followed(tmp_path, victim, way) -> None:
    place = LocalPlace(tmp_path / "place")
    place.write("down/a", b"")
    for name in ("link", "down/link"):
        (tmp_path / "place" / name).symlink_to(victim)
    before = sorted(victim.rglob("*"))
    for key in ("link/file", "link/deep/new", "down/link/file"):
        with pytest.raises(StoreError, match="link is a link, which may lead anywhere"):
            (LOOKS | CHANGES)[way](place, key)
    assert sorted(victim.rglob("*")) == before
    assert (victim / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("way", ["read", "read_part", "has", "write", "stream", "create", "delete"])
def test_a_link_in_place_of_a_file_is_not_followed(tmp_path, victim, way) -> None:
    place = LocalPlace(tmp_path / "place")
    place.write("a", b"")
    (tmp_path / "place" / "link").symlink_to(victim / "file")
    if way in LOOKS:
        with pytest.raises(StoreError, match="link is a link, which may lead anywhere"):
            LOOKS[way](place, "link")
    else:
        assert CHANGES[way](place, "link") is not True
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


def test_a_path_is_a_folder_unless_it_begins_as_an_address() -> None:
    for address in ("ftp://bucket/runs", "FTP://bucket", "ftp:/bucket", Path("ftp://bucket/runs")):
        with pytest.raises(UsageError, match=r"there are no places of scheme ftp://; give a folder or s3://$"):
            place_of(address)
    for path in ("runs", "/tmp/a:b/c", "a:b", "C:/runs", "./s3:", "a b://c"):
        assert place_of(path) == place_of(Path(path)) == LocalPlace(Path(path))


def test_a_scheme_in_the_table_makes_the_place(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(SCHEMES, "mem", lambda address: LocalPlace(tmp_path / address.removeprefix("mem://")))
    assert place_of("mem://a") == LocalPlace(tmp_path / "a")
    with pytest.raises(UsageError, match="give a folder or s3://, mem://"):
        place_of("ftp://a")


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
