"""What partitions are called: by their names, so that nobody takes one for another or for a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundweave.storage.errors import NotARun, UsageError
from roundweave.storage.rounds.splits import partition_names


@pytest.mark.parametrize(
    ("names", "called"),
    [
        (("berlin", "paris"), ("berlin", "paris")),
        (("München", "東京"), ("München", "東京")),
        (("ward 7/b", "Saint-Denis (93)"), ("ward 7/b", "Saint-Denis (93)")),
        (("0", "1"), range(2)),
        ((), range(2)),
        (("1", "0"), ("0 (1)", "1 (0)")),
        (("1.0", "2.0"), ("0 (1.0)", "1 (2.0)")),
        (("", "paris"), ("0 ()", "1 (paris)")),
        (("paris", "paris"), ("0 (paris)", "1 (paris)")),
        (("paris ", "paris"), ("0 (paris )", "1 (paris)")),
        (("Paris, Texas", "rome"), ("0 (Paris, Texas)", "1 (rome)")),
        (("1 (rome)", "rome"), ("0 (1 (rome))", "1 (rome)")),
        (("a\nb", "c\x1b[2J"), (r"a\nb", r"c\x1b[2J")),
        (("a\nb", r"a\nb"), (r"0 (a\nb)", r"1 (a\nb)")),
        (("x" * 99, "y"), (f"{'x' * 10}…{'x' * 29}", "y")),
        (("x" * 99, "x" * 98), (f"0 ({'x' * 10}…{'x' * 29})", f"1 ({'x' * 10}…{'x' * 29})")),
    ],
)
def test_a_name_stands_alone_where_nobody_can_take_it_for_another_or_for_a_number(names, called) -> None:
    assert partition_names(names, 2) == called


@given(st.lists(st.text() | st.integers().map(str), min_size=1))
def test_no_two_partitions_are_called_alike_and_none_as_a_number_of_another(names) -> None:
    called = [*map(str, partition_names(tuple(names), len(names)))]
    assert len({*called}) == len(names)
    assert all(each.isprintable() for each in called)
    assert all(each not in called or called[n] == each for n, each in enumerate(map(str, range(len(names)))))


@pytest.mark.parametrize(
    ("names", "given", "number"),
    [
        (("berlin", "paris"), "paris", 1),
        (("berlin", "paris"), 1, 1),
        (("berlin", "paris"), "1", 1),
        (("1", "2"), 1, 1),
        (("1", "2"), "0 (1)", 0),
        (("1", "2"), "2", 1),
        (("a\nb", "c"), "a\nb", 0),
        (("a\nb", "c"), r"a\nb", 0),
        ((), "0", 0),
    ],
)
def test_a_partition_is_given_by_its_name_or_its_number(tiny, names, given, number) -> None:
    assert tiny.create(names=names).find_partition(given) == number


@pytest.mark.parametrize(
    ("names", "given", "says"),
    [
        (("1", "2"), "1", r"has several partitions 1; give 0 \(1\) or 1 \(2\)"),
        (("paris", "paris"), "paris", r"has several partitions paris; give 0 \(paris\) or 1 \(paris\)"),
        (("berlin", "paris"), "pariss", r"no partition pariss; did you mean paris\?"),
        (("berlin", "paris"), 2, "tiny.zarr has no partition 2; it has partitions berlin, paris"),
        (("berlin", "paris"), -1, "no partition -1"),
        ((), "paris", "no partition paris; it has partitions 0 to 1"),
    ],
)
def test_what_is_none_or_several_partitions_is_refused(tiny, names, given, says) -> None:
    with pytest.raises(UsageError, match=says):
        tiny.create(names=names).find_partition(given)


def test_a_record_that_names_other_partitions_is_refused(tiny) -> None:
    with pytest.raises(NotARun, match="names of 3 partitions, not of 2"):
        _ = tiny.create(names=("a", "b", "c")).partition_names
