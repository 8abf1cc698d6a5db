"""Texts of others, nested as deep as they like."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.parsing import DEEPEST, from_json, from_toml

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
@settings(max_examples=40)
def test_what_is_not_deep_is_read_as_it_is(value) -> None:
    assert from_json(json.dumps(value)) == from_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("depth", [DEEPEST, 900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[[],{"a":', "}]")])
def test_json_that_is_nested_too_deep_is_refused(depth, opening, closing) -> None:
    with pytest.raises(ValueError, match=f"it is nested deeper than {DEEPEST} levels"):
        from_json(opening * depth + "0" + closing * depth)


def test_as_deep_as_allowed_is_read() -> None:
    text = "[" * (DEEPEST - 1) + "0" + "]" * (DEEPEST - 1)
    assert json.dumps(from_json(text)) == text


@pytest.mark.parametrize("depth", [DEEPEST, 900, 5_000])
@pytest.mark.parametrize("text", [lambda n: "a = " + "[" * n + "]" * n, lambda n: ".".join("a" * n) + " = 1"])
def test_toml_that_is_nested_too_deep_is_refused(depth, text) -> None:
    with pytest.raises(ValueError, match=f"it is nested deeper than {DEEPEST} levels"):
        from_toml(text(depth))
    assert from_toml(text(3))


@pytest.mark.parametrize("read", [from_json, from_toml])
def test_nonsense_is_the_same_error(read) -> None:
    with pytest.raises(ValueError, match="line 1"):
        read("{ = [")
