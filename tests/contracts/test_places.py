"""A place keeps byte strings by key: whole or not at all, created by one of many, and nothing outside of it.

A new kind of place gets a row in `PLACES`.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import PlaceTaken, StoreDamaged, StoreError, WriterFenced
from roundweave.storage.places.base import Place
from roundweave.storage.places.schemes import place_of

PLACES: dict[str, Callable[[pytest.FixtureRequest, Path], str | Path]] = {
    "disk": lambda request, folder: folder / "deep/place",
    "bucket": lambda request, folder: f"{request.getfixturevalue('s3').bucket()}/deep/place",
}
"""The address of a new place of each kind."""

CHANGES: dict[str, Callable[[Place, str], object]] = {
    "write": lambda place, key: place.write(key, b"new"),
    "stream": lambda place, key: place.stream(key, iter([b"new"])),
    "create": lambda place, key: place.create(key, b"new"),
    "delete": lambda place, key: place.delete(key),
    "delete_names": lambda place, key: place.delete_names(*key.rsplit("/", 1)),
}
LOOKS: dict[str, Callable[[Place, str], object]] = {
    "read": lambda place, key: place.read(key),
    "read_part": lambda place, key: place.read_part(key, 0, 1),
    "has": lambda place, key: place.has(key),
    "names": lambda place, key: place.names(key),
    "age": lambda place, key: place.age(key),
}
"""Every method that takes a key."""


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(PLACES[request.param](request, tmp_path))


def content(place: Place, key: str) -> bytes | None:
    found = place.read(key)
    return None if found is None else bytes(found)


RACES = 30


def race(place: Place, number: int, start: Any, results: Any) -> None:
    """Create contents at the same time as others; tell which of them this one created."""
    won = []
    for key in range(RACES):
        start.wait()
        won.append(place.create(f"deep/{key}", str(number).encode() * 10_000))
    results.put((number, won))


class TestPlace:
    """What each place promises."""

    @given(pieces=st.lists(st.binary(max_size=50), max_size=4), durable=st.booleans())
    @settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_was_written_is_read(self, place: Place, pieces: list[bytes], durable: bool) -> None:
        place.delete("")
        place.write("deep/down/a", *pieces, durable=durable)
        assert place.create("b", *map(memoryview, pieces), durable=durable)
        place.stream("deep/c", iter(pieces), durable=durable)
        assert content(place, "deep/down/a") == content(place, "b") == content(place, "deep/c") == b"".join(pieces)

    def test_it_is_empty_at_first_and_once_it_is_made(self, place: Place) -> None:
        for make in (lambda: None, place.make, place.make, place.sync, place.flush, place.sweep):
            make()
            assert (place.names(), place.names("a"), place.sizes()) == ([], [], {})
            assert (place.read("a"), place.read_part("a", 0, 1), place.age("a")) == (None, None, None)
            assert not place.has("a")
        place.delete("a")
        assert place.at_once >= 1
        assert place.free() is None or place.free() > 0

    def test_writing_replaces_and_creating_does_not(self, place: Place) -> None:
        place.write("a", b"one")
        place.write("a", b"2")
        assert not place.create("a", b"three")
        assert (content(place, "a"), place.names()) == (b"2", ["a"])

    def test_a_stream_that_breaks_off_leaves_what_was_there(self, place: Place) -> None:
        def pieces():
            yield b"half"
            raise KeyError("no more")

        place.write("a", b"whole")
        for key in ("a", "b"):
            with pytest.raises(KeyError):
                place.stream(key, pieces())
        assert (place.names(), content(place, "a")) == (["a"], b"whole")

    def test_a_part_is_read(self, place: Place) -> None:
        place.write("deep/a", b"0123456789")
        read = {at: bytes(place.read_part("deep/a", *at)) for at in ((0, 3), (4, 2), (8, 9), (10, 1))}
        assert read == {(0, 3): b"012", (4, 2): b"45", (8, 9): b"89", (10, 1): b""}
        assert place.read_part("deep", 0, 1) is None

    def test_names_and_sizes_are_those_of_what_is_there(self, place: Place) -> None:
        sizes = {"a": 5, "b/1": 1, "b/10": 0, "b/2/x": 3, "bc": 2}
        for key, size in reversed(sizes.items()):
            place.write(key, b"_" * size)
        assert list(place.sizes().items()) == list(sizes.items())
        assert (place.names(), place.names("b"), place.names("a")) == (["a", "b", "bc"], ["1", "10", "2"], [])
        there = {key: place.has(key) for key in ("b/1", "b", "b/2/x", "b/3")}
        assert there == {"b/1": True, "b": False, "b/2/x": True, "b/3": False}
        assert place.read("b") is place.read("a/1") is None

    def test_deleting_takes_what_is_under_a_prefix_and_nothing_beside(self, place: Place) -> None:
        for key in ("a/1", "a/2/x", "ab", "b"):
            place.write(key, b"")
        place.delete("a")
        place.delete("b")
        assert place.names() == ["ab"]

    def test_deleting_names_takes_these_and_nothing_below_or_beside(self, place: Place) -> None:
        for key in ("a/1", "a/2", "a/3", "b/1"):
            place.write(key, b"")
        place.delete_names("a", ["1", "3"])
        place.delete_names("c", ["1"])
        with pytest.raises(StoreError, match="leads out of"):
            place.delete_names("a", ["../b/1"])
        assert sorted(place.sizes()) == ["a/2", "b/1"]

    def test_a_read_content_can_be_written_to(self, place: Place) -> None:
        place.write("a", b"abc")
        place.read("a")[0] = 0
        assert content(place, "a") == b"abc"

    def test_no_more_is_read_than_belongs_there(self, place: Place) -> None:
        place.write("a", b"abc")
        assert bytes(place.read("a", most=3)) == b"abc"
        with pytest.raises(StoreDamaged, match="a has 3 bytes, where at most 2 belong"):
            place.read("a", most=2)

    @pytest.mark.parametrize("way", [*LOOKS, *CHANGES])
    def test_a_key_that_leads_out_is_refused(self, place: Place, way: str) -> None:
        place.write("a/c", b"")
        for key in ("../out", "a/../../out", "/etc/passwd", "a/..", "a//b", "a/\0"):
            with pytest.raises(StoreError, match="leads out of"):
                (LOOKS | CHANGES)[way](place, key)
        place.write("a..b/c", b"")

    def test_an_age_is_by_the_clock_of_the_place(self, place: Place) -> None:
        place.write("a", b"x")
        assert -5 < place.age("a") < 600

    def test_it_travels_and_its_text_is_its_address(self, place: Place) -> None:
        assert pickle.loads(pickle.dumps(place)) == place == place_of(str(place)) == place_of(place)

    def test_what_is_made_aside_comes_at_once_or_never(self, place: Place) -> None:
        with place.aside() as partial:
            partial.write("a/b", b"x")
            assert place.names() == []
        assert content(place, "a/b") == b"x"
        with pytest.raises(PlaceTaken, match="exists already"), place.aside() as partial:
            partial.write("c", b"y")
        assert place.names() == ["a"]

    def test_a_making_that_fails_leaves_nothing(self, place: Place, tmp_path: Path) -> None:
        def fail() -> None:
            with place.aside() as partial:
                partial.write("a", b"x")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert (place.names(), [path for path in tmp_path.rglob("*") if path.is_file()]) == ([], [])

    @pytest.mark.parametrize("way", CHANGES)
    def test_a_writer_whose_lease_is_over_changes_nothing_that_is_there(self, place: Place, way: str) -> None:
        def over() -> None:
            raise WriterFenced("another writer")

        place.write("a/b", b"old")
        with suppress(WriterFenced):
            assert not CHANGES[way](place.fenced(over), "a/b")
        assert (place.sizes(), content(place, "a/b")) == ({"a/b": 3}, b"old")

    def test_of_several_at_once_exactly_one_creates_each_content(self, place: Place, request) -> None:
        """Processes on a disk, and threads with a bucket, whose client no fork takes along."""
        context = multiprocessing.get_context("fork")
        disk = place.at_once == 1
        start = context.Barrier(3) if disk else threading.Barrier(3)
        results = context.Queue() if disk else queue.Queue()
        kind = context.Process if disk else threading.Thread
        racing = [kind(target=race, args=(place, n, start, results)) for n in range(3)]
        for each in racing:
            each.start()
        won = dict(results.get() for _ in racing)
        for each in racing:
            each.join()
        for key in range(RACES):
            (winner,) = (number for number in won if won[number][key])
            assert content(place, f"deep/{key}") == str(winner).encode() * 10_000
        assert len(place.names("deep")) == RACES
