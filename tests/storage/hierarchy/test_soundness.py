"""Names, shapes and types that no run has are refused when a store is made or opened."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import NotARun, StoreDamaged, StoreError, UsageError
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.hierarchy.soundness import checked_schema
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.recovery import recover
from roundweave.storage.values.state import Layout
from roundweave.storage.values.tensors import TensorSpec
from tests.storage.conftest import contents, lengthened, thorough


def named(*names: object, dtype: object = "float32", shape: object = (2,), kind: str = "params", **more) -> Schema:
    """Of a network whose tensors of a kind have these names."""
    specs = tuple(TensorSpec(name, dtype, shape) for name in names)
    if kind in ("params", "buffers", "frozen"):
        return Schema(Layout(**{"params": ()} | {kind: specs} | more), 1)
    slots = {kind: specs if kind == "matches" else names} | more
    return Schema(Layout((TensorSpec("c", "float32", ()), TensorSpec("b/c", "float32", ()))), 1, **slots)


CLIMBING = ["../../../../climbed/w", "a/../../b", "/etc/w", "..", ".", "", "a//b", "a/", "a/./b", "a\0b", "a\nb"]
ODD = ["zarr.json", "a/zarr.json", "n" * 256, "\udc80", 7, None, ["a"]]


KINDS = ("params", "buffers", "frozen", "memory", "carry", "extras", "matches")
DTYPES = ("object", "O", "str", "float33", "<f4", "i4,i4", "void", "datetime64", 3, None)
SHAPES = ((-1,), (1.5,), ("2",), (True,), (1 << 40, 1 << 40), (None,), (1,) * 61)
UNSOUND = {
    **{f"the name {name!r} in {kind}": named(name, kind=kind) for name in CLIMBING for kind in KINDS},
    **{f"the name {name!r}": named(name) for name in ODD},
    **{f"the names {n}": named(*n) for n in (("a", "a"), ("a", "a/b"), ("a", "a/c/0"), ("a/b/c", "a/b"))},
    "slots that tensors meet": named("a", "a/b", kind="memory"),
    **{f"the type {dtype}": named("a", dtype=dtype) for dtype in DTYPES},
    **{f"the shape {shape}": named("a", shape=shape) for shape in SHAPES},
    **{f"{n!r} partitions": replace(named("a"), partitions=n) for n in (0, -1, "2", 1.0, True, None)},
    "a tie to nothing": named("a", aliases=(("b", "c"),)),
}


@pytest.mark.parametrize("schema", UNSOUND.values(), ids=map(ascii, UNSOUND))
def test_what_no_run_has_is_refused(schema) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        checked_schema(schema.to_json())


def test_what_networks_are_called_is_sound(tiny) -> None:
    for schema in (tiny.schema, named("layers.0.weight", "a/b.weight", "a b", "größe", "n" * 255, "..a")):
        checked_schema(schema.to_json())


@given(st.lists(st.text(max_size=8), max_size=3))
@settings(max_examples=50)
def test_what_is_sound_stays_inside(names) -> None:
    schema = named(*names)
    with suppress(ValueError):
        checked_schema(schema.to_json())
        assert not any(LocalPlace(Path("/nowhere")).has(path) for path in schema.arrays(1))


def test_a_store_with_such_names_is_not_made(tiny, tmp_path) -> None:
    state = replace(tiny.state(0), memory={})
    with pytest.raises(UsageError, match=r"the network cannot be stored: 'params/\.\./w' is no path"):
        RoundStore.create(tmp_path / "a.zarr", named("../w"), 1, {}, state)
    assert list(tmp_path.iterdir()) == []


def test_a_store_with_such_names_is_not_opened(tiny, tmp_path) -> None:
    store = tiny.train(tiny.create(), 1)
    for path in store.path.rglob("*.json"):  # all that documents say
        path.write_text(path.read_text().replace('"fc.weight"', '"../../../../climbed/w"'))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotARun, match=r"no run that Roundweave made: .*climbed"):
        RoundStore(store.path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("inside", ["params", "params/fc.weight/c", "commits", "zarr.json"])
def test_nothing_is_written_or_read_through_a_link_in_a_run(tiny, tmp_path, inside) -> None:
    store = tiny.train(tiny.create(), 1)
    victim = tmp_path / "elsewhere/victim"
    victim.parent.mkdir()
    (store.path / inside).rename(victim)
    (store.path / inside).symlink_to(victim)
    before = contents(victim.parent)

    def use() -> None:
        again = RoundStore(store.path)
        recover(again)
        tiny.train(lengthened(again, 5), 2)

    with pytest.raises(StoreError):
        use()
    assert contents(victim.parent) == before


def test_more_than_belongs_there_is_not_read(tiny) -> None:
    store = tiny.train(tiny.create(), 1)
    with (store.path / "params/fc.weight/c/1/0/0").open("ab") as file:
        file.truncate(1 << 40)  # of holes: it takes no room on the disk
    with pytest.raises(StoreDamaged, match="where at most 28 belong"):
        store.tensors.read_state(1)
    with (store.path / "zarr.json").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(NotARun):
        RoundStore(store.path)


def test_documents_that_are_nested_too_deep_are_one_clear_error(tiny, depth=100_000) -> None:
    store = tiny.train(tiny.create(), 1)
    for key in ("commits/1.json", "zarr.json"):
        (store.path / key).write_text('{"attributes":' * depth + "0" + "}" * depth)
        with pytest.raises((NotARun, StoreDamaged)):
            RoundStore(store.path).log.read(1)


@pytest.mark.parametrize("nonsense", ['{"attributes":' * 100_000, '{"shape": [1000000000000000]}'], ids=len)
def test_a_number_of_rounds_that_is_none_is_that_of_the_records(tiny, nonsense) -> None:
    store = tiny.train(tiny.create(), 1)
    (store.path / "commits/zarr.json").write_text(nonsense)
    assert RoundStore(store.path).rounds == 3  # the other coordinates tell it too
    for path in ("committed", "round"):
        (store.path / path / "zarr.json").write_text(nonsense)
    assert RoundStore(store.path).rounds == 1
    assert recover(RoundStore(store.path))[0] == 1


@pytest.mark.parametrize("kind", ["memory", *thorough("carry", "extras")])
def test_more_slots_than_any_optimizer_has_are_refused_in_a_line(tiny, kind) -> None:
    store = tiny.train(tiny.create(), 1)
    document = json.loads((store.path / "zarr.json").read_text())
    document["attributes"]["schema"][kind] = [f"s{number}" for number in range(1_001)]
    (store.path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(NotARun, match=f"{kind}: .* at most 1000 items"):
        RoundStore(store.path)
