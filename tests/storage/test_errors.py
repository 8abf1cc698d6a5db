"""What messages are made of."""

from __future__ import annotations

from storage.errors import near, nearest


def test_a_mistyped_name_is_asked_for() -> None:
    names = ["accuracy", "loss", "losses"]
    assert near("losss", names, 2) == ["losses", "loss"]
    assert nearest("losss", names, "no", most=2) == "did you mean losses or loss?"
    assert nearest("losss", iter(names), "no") == "did you mean losses?"
    assert nearest("zzz", names, "there are three") == "there are three"
