"""The page of a run: all in one file, and nothing in it that the run does not say."""

from __future__ import annotations

import base64
import html
import re

import pytest

from roundweave.flows.plugins.exports.report import write_report
from roundweave.flows.stored import open_run
from roundweave.storage.errors import PlaceError, UsageError
from tests.rows import second


def page_of(run, tmp_path, **options) -> tuple[list[str], list[str]]:
    """The texts of a page, and what its elements point to."""
    content = write_report(run, tmp_path / "run.html", **options).read_text()
    shown = re.sub("<style>.*?</style>", "", content, flags=re.DOTALL)
    texts = [" ".join(html.unescape(text).split()) for text in re.findall(">([^<>]+)<", shown) if text.strip()]
    return texts, re.findall('(?:src|href)="([^"]*)"', content)


def test_a_page_tells_of_a_run_and_needs_nothing_else(stored, tmp_path) -> None:
    run = stored("plain")
    texts, sources = page_of(run, tmp_path, replay=2)
    assert run.digest in texts
    assert run.chain in texts
    replayed = [text for text in texts if text.endswith("bit-identical")]
    assert replayed == [f"round {number}: bit-identical" for number in (1, 3)]
    assert "sound" in texts
    assert f"{run.history()['loss'][3]:.5g}" in texts
    assert texts[texts.index("local_steps") + 1] == "2"
    assert len(sources) == 4
    for source in sources:
        head, content = source.split(",")
        assert head == "data:image/svg+xml;base64"
        picture = base64.b64decode(content).lstrip()
        assert picture.startswith(b"<?xml")
        assert b"<text" not in picture  # which another font would make wider than what was measured


def test_refused_updates_are_named_and_a_change_is_found(stored, tmp_path, flip) -> None:
    run = stored("counting")
    texts, _ = page_of(run, tmp_path, replay=0)
    reasons = [run.round(number).refused[1] for number in (2, 3)]
    assert [text for text in texts if text in reasons] == reasons
    assert "not replayed: no round was asked for" in texts
    flip(run.path / "params/first.weight/c/2/0/0")
    texts, _ = page_of(open_run(run.address), tmp_path, replay=0)
    assert "sound" not in texts
    assert any("params/first.weight/c/2/0/0" in text for text in texts)


def test_a_plot_of_what_is_not_kept_is_left_out_with_a_line(stored, tmp_path) -> None:
    texts, sources = page_of(stored("states"), tmp_path, replay=0)
    assert len(sources) == 3
    said = texts[texts.index("How far the partitions disagreed") + 1]
    assert said == "not drawn: no round keeps the tensors for it"


def test_what_is_the_users_is_text_and_no_markup(stored, tmp_path) -> None:
    run = stored("plain")
    run.attributes["data"]["class_names"] = ["<script>alert(1)</script>"]
    content = write_report(run, tmp_path / "run.html", replay=0).read_text()
    assert "<script" not in content
    assert "&lt;script&gt;" in content


@pytest.mark.parametrize(
    ("out", "error", "says"),
    [
        ("run.txt", UsageError, "ends in .html"),
        ("no/run.html", UsageError, "there is no folder"),
        ("taken.html", UsageError, "is a folder"),
        *second(("/proc/run.html", PlaceError, "cannot be written")),
    ],
)
def test_places_where_no_page_can_be_are_one_clear_line(stored, tmp_path, out, error, says) -> None:
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(error, match=says):
        write_report(stored("plain"), tmp_path / out, replay=0)
