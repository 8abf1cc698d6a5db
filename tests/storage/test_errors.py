"""What messages are made of."""

from __future__ import annotations

import fnmatch
from dataclasses import FrozenInstanceError, dataclass

import pytest

from roundweave.storage.errors import UsageError, failing_as, located, near, nearest
from roundweave.storage.rounds.commits import section_key


def test_a_mistyped_name_is_asked_for() -> None:
    names = ["accuracy", "loss", "losses"]
    assert near("losss", names, 2) == ["losses", "loss"]
    assert nearest("losss", names, "no", most=2) == "did you mean losses or loss?"
    assert nearest("losss", iter(names), "no") == "did you mean losses?"
    assert nearest("zzz", names, "there are three") == "there are three"


@dataclass(frozen=True)
class Frozen:
    number: int = 1


def test_an_error_that_we_raise_names_the_line_that_called_us() -> None:
    with pytest.raises(UsageError) as raised:
        section_key("a/b", 1)
    line = test_an_error_that_we_raise_names_the_line_that_called_us.__code__.co_firstlineno + 2
    assert located(raised.value).endswith(f"(line {line} of {__file__})")


def test_an_error_in_what_a_dataclass_generates_names_the_line_that_called_it() -> None:
    with pytest.raises(FrozenInstanceError) as raised:
        Frozen().number = 2  # type: ignore[misc]
    line = test_an_error_in_what_a_dataclass_generates_names_the_line_that_called_it.__code__.co_firstlineno + 2
    assert located(raised.value).endswith(f"(line {line} of {__file__})")


def test_a_notebook_shows_the_lines_of_its_own_that_led_to_an_error() -> None:
    """Also those of the user's code that we called; none of ours, and none of libraries."""

    def own() -> object:
        return fnmatch.translate(None)  # type: ignore[arg-type]

    with pytest.raises(UsageError) as raised, failing_as(lambda error: UsageError("it is no pattern")):
        own()
    *frames, last = raised.value._render_traceback_()
    assert last == "UsageError: it is no pattern"
    here = own.__qualname__.partition(".")[0]  # the line of the error itself, and as the first one of its cause
    assert [frame.partition(" in ")[2].split()[0] for frame in frames] == [here, here, "own"]
    assert all(f'File "{__file__}"' in frame for frame in frames)
