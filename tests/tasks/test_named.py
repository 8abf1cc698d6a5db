"""Values by name and arguments."""

from __future__ import annotations

import pytest

from storage.errors import UsageError
from tasks.named import make_named


def pair(left: int, right: float = 0.5) -> tuple[int, float]:
    if left < 0:
        raise UsageError("left is negative")
    return left, right


TABLE = {"pair": pair, "none": lambda: None}


def test_arguments_have_their_annotated_types() -> None:
    assert make_named("thing", "pair:3", TABLE) == (3, 0.5)
    assert make_named("thing", "pair:3:1", TABLE) == (3, 1.0)
    assert isinstance(make_named("thing", "pair:3:1", TABLE)[1], float)
    assert make_named("thing", "none", TABLE) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pear:1", r"unknown thing 'pear'; did you mean pair\? There are pair:left\[:right\], none$"),
        ("xyz", r"unknown thing 'xyz'; there are pair:left\[:right\], none$"),
        ("", r"unknown thing ''; there are"),
        ("pair", r"thing 'pair' must be written pair:left\[:right\]$"),
        ("pair:1:2:3", "must be written"),
        ("pair:1.5", "must be written"),
        ("none:1", "thing 'none:1' must be written none$"),
        ("pair:-1", "^left is negative$"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make_named("thing", text, TABLE)
