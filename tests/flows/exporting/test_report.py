"""The page of a run: all in one file, and nothing in it that the run does not say."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from roundweave.flows.exporting.report import write_report
from roundweave.flows.stored import open_run
from roundweave.storage.errors import PlaceError, UsageError
from tests.patience import PATIENCE


class Page(HTMLParser):
    """The texts of a page, and what its elements point to."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag, attributes) -> None:
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] != "style" and data.strip():
            self.texts.append(" ".join(data.split()))


def page_of(run, tmp_path, **options) -> Page:
    page = Page(write_report(run, tmp_path / "run.html", **options).read_text())
    assert page.open == []
    return page


def test_a_page_tells_of_a_run_and_needs_nothing_else(stored, tmp_path) -> None:
    run = stored("plain")
    page = page_of(run, tmp_path, replay=2)
    assert run.digest in page.texts
    assert run.chain in page.texts
    replayed = [text for text in page.texts if text.endswith("bit-identical")]
    assert replayed == [f"round {number}: bit-identical" for number in (1, 3)]
    assert "sound" in page.texts
    assert f"{run.history()['loss'][3]:.5g}" in page.texts
    assert page.texts[page.texts.index("local_steps") + 1] == "2"
    assert len(page.sources) == 4
    for source in page.sources:
        head, content = source.split(",")
        assert head == "data:image/svg+xml;base64"
        picture = base64.b64decode(content).lstrip()
        assert picture.startswith(b"<?xml")
        assert b"<text" not in picture  # which another font would make wider than what was measured


EDGE = """<style>html { width: 390px } body { margin: 0 }</style><script>onload = () => {
  const inside = [...document.querySelectorAll("body, body *:not(.scroll *)")];
  document.title = "edge " + Math.max(...inside.map(each => each.getBoundingClientRect().right));
}</script>"""


def test_on_a_telephone_nothing_runs_over_the_edge(stored, tmp_path) -> None:
    """A browser lays the page out in 390 pixels; what scrolls by itself may be wider."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no browser is installed")
    run, page = stored("scored"), tmp_path / "run.html"
    write_report(run, page, replay=1)
    page.write_text(page.read_text() + EDGE)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]
    line = [chromium, *options, f"--user-data-dir={tmp_path / 'browser'}", page.as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=PATIENCE)
    edge = re.search(r"<title>edge ([\d.]+)</title>", done.stdout)
    assert edge is not None
    assert 300 < float(edge[1]) <= 390


def test_refused_updates_are_named_and_a_change_is_found(stored, tmp_path, flip) -> None:
    run = stored("counting")
    page = page_of(run, tmp_path, replay=0)
    reasons = [run.round(number).refused[1] for number in (2, 3)]
    assert [text for text in page.texts if text in reasons] == reasons
    assert "not replayed: no round was asked for" in page.texts
    flip(run.path / "params/first.weight/c/2/0/0")
    page = page_of(open_run(run.address), tmp_path, replay=0)
    assert "sound" not in page.texts
    assert any("params/first.weight/c/2/0/0" in text for text in page.texts)


def test_a_plot_of_what_is_not_kept_is_left_out_with_a_line(stored, tmp_path) -> None:
    page = page_of(stored("states"), tmp_path, replay=0)
    assert len(page.sources) == 3
    said = page.texts[page.texts.index("How far the partitions disagreed") + 1]
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
        ("/proc/run.html", PlaceError, "cannot be written"),
    ],
)
def test_places_where_no_page_can_be_are_one_clear_line(stored, tmp_path, out, error, says) -> None:
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(error, match=says):
        write_report(stored("plain"), tmp_path / out, replay=0)
