"""How runs and rounds look: from what is recorded alone, escaped, and short."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import Commit, UpdateRecord
from roundweave.storage.runs.markup import round_card
from roundweave.storage.runs.run import StoredRun


class Cells(HTMLParser):
    """Texts of a page, and whether its tags are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] * bool(data.strip())


@pytest.fixture
def run(tiny) -> StoredRun:
    store = tiny.create()
    store.commit(tiny.write(store, 1))
    store.commit(tiny.write(store, 2, refused=(0,)))
    return StoredRun(store.path)


def test_a_run_shows_what_it_is_and_its_last_score(run) -> None:
    cells = Cells(run._repr_html_())
    assert not cells.open
    line = "2/3 rounds · fed_avg · 2 partitions · 11 params · 0.000805 MB"
    assert cells.texts[:4] == ["tiny", "interrupted", "run", line]
    assert cells.texts[4:8] == ["round 2", "loss 0.5 · accuracy 0.5000", "place", str(run.path)]
    assert cells.texts[8:12] == ["8 tensors", "tensor", "type", "shape"]
    assert cells.texts[12:15] == ["fc.weight", "float32", "(3, 2)"]
    assert line in repr(run)


def test_a_round_shows_what_became_of_each_update(run) -> None:
    cells = Cells(run.round(2)._repr_html_())
    assert not cells.open
    assert cells.texts[:2] == ["Round 2", "loss 0.5 · accuracy 0.5000"]
    assert "1 accepted, 1 refused" in cells.texts
    assert cells.texts[-8:] == ["0", "10", "not sound", "2", "1", "11", "accepted", "3"]
    assert Cells(run.round(0)._repr_html_()).texts[:2] == ["Round 0", "seconds"]


def test_of_many_partitions_the_first_are_shown() -> None:
    updates = {partition: UpdateRecord("d", 1) for partition in range(100)}
    page = round_card(Commit(round=1, token="t", epoch=1, state="s", tensors={}, updates=updates))
    assert Cells(page).texts[-1] == "and 88 more partitions"


def test_names_are_shown_as_they_are(tiny) -> None:
    store = tiny.create("<b>&")
    commit = tiny.write(store, 1)
    refused = replace(commit.updates[0], refused="<script>alert(1)</script>")
    store.commit(replace(commit, updates={0: refused}))
    run = StoredRun(store.path)
    for page in (run._repr_html_(), run.round(1)._repr_html_()):
        assert "<b>&<" not in page
        assert "<script>" not in page
    assert Cells(run._repr_html_()).texts[0] == "<b>&"


def test_looking_at_a_run_reads_what_is_recorded_and_no_tensor(tiny, monkeypatch) -> None:
    """A run of many rounds costs no more reads than one of few, beside a look at the names of its records."""
    keys: list[str] = []
    read = LocalPlace.read
    monkeypatch.setattr(
        LocalPlace, "read", lambda place, key, most=None: keys.append(key) or read(place, key, most)
    )
    counts = []
    for rounds in (2, 40):
        store = tiny.train(tiny.create(f"of{rounds}", rounds=rounds), rounds)
        keys.clear()
        run = StoredRun(store.path)
        last = run.round(-1)
        repr(run), run._repr_html_(), repr(last), last._repr_html_()
        assert not [key for key in keys if not key.startswith("commits/") and not key.endswith("zarr.json")]
        counts.append(len(keys))
    assert counts[0] == counts[1] <= 12
