"""After a night the older runs of its schedule go, of no other; and what fails of that fails no training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.config.scheduled import scheduled
from roundweave.storage.errors import PlaceError, UsageError
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.listing import looked_through

SMALL = {"model": "logistic", "partitions": 2, "local_steps": 1, "executor": "inline", "rounds": 1}
DAY = 86_400
now = time.time


def config(root: Path, **fields: Any) -> rw.TrainConfig:
    return rw.TrainConfig(**SMALL | {"root": root, "name": "night-{date}"} | fields)


def nights(root: Path, monkeypatch: pytest.MonkeyPatch, *days: int, **fields: Any) -> list[str]:
    """The names of the runs that are begun so many days ago, one after the other."""
    names = []
    for ago in days:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda ago=ago: now() - ago * DAY)
            names.append(rw.train(config(root, **fields), bar=False).name)
    return names


@pytest.mark.parametrize("train", [train_flow.fn, rw.train])
def test_older_runs_of_the_schedule_go_and_no_others(tmp_path: Path, monkeypatch, capfd, train) -> None:
    old, young = nights(tmp_path, monkeypatch, 20, 5)
    others = nights(tmp_path, monkeypatch, 20, name="night") + nights(
        tmp_path, monkeypatch, 21, name="night-x{date}"
    )
    capfd.readouterr()
    last = train(config(tmp_path, retain="14d")).name
    assert sorted(looked_through(tmp_path)) == sorted([young, *others, last])
    said = capfd.readouterr().err
    assert f"retain 14d removed {old}, 0." in said
    train(config(tmp_path, name="other-{date}", retain="14d"))
    assert "retain" not in capfd.readouterr().err


def test_names_that_follow_a_complete_run_are_of_its_schedule(tmp_path: Path, monkeypatch) -> None:
    again = {"name": "night", "on_complete": "new"}
    *old, young = nights(tmp_path, monkeypatch, 30, 20, 20, 3, **again)
    nights(tmp_path, monkeypatch, 30, name="nightly")
    assert (old[0], len({*old})) == ("night", 3)
    last = rw.train(config(tmp_path, retain="2w", **again)).name
    assert sorted(looked_through(tmp_path)) == sorted([young, "nightly", last])


def test_a_run_that_is_written_stays_and_so_does_the_training(tmp_path: Path, monkeypatch, capfd) -> None:
    (old,) = nights(tmp_path, monkeypatch, 20)
    with hold_lease(LocalPlace(tmp_path / f"{old}.zarr"), "mine"):
        last = rw.train(config(tmp_path, retain="14d"))
    assert (last.status, sorted(looked_through(tmp_path))) == ("complete", sorted([old, last.name]))
    assert f"{old} stays, though retain is 14d: " in capfd.readouterr().err


def test_a_failure_of_the_removal_is_one_line_and_fails_nothing(tmp_path: Path, monkeypatch, capfd) -> None:
    def failing(*_: object, **__: object) -> None:
        raise PlaceError("the disk is gone")

    monkeypatch.setattr("roundweave.flows.training.retaining.looked_through", failing)
    assert rw.train(config(tmp_path, retain="1h")).status == "complete"
    said = [line for line in capfd.readouterr().err.splitlines() if "older runs" in line]
    assert said == [
        "not all older runs were removed (PlaceError: the disk is gone); the run itself is not affected"
    ]


def test_the_night_itself_stays_however_long_it_took(tmp_path: Path, monkeypatch) -> None:
    name = nights(tmp_path, monkeypatch, 2)[0]
    monkeypatch.setattr(time, "strftime", lambda *_: "")
    assert rw.train(config(tmp_path, name=name, rounds=2, schedule="night.*", retain="1h")).done == 2


def test_a_night_is_resumed_though_its_name_has_no_date_any_more(tmp_path: Path) -> None:
    last = rw.train(config(tmp_path, retain="14d"))
    longer = resumed_config(last.name, tmp_path, False, {"rounds": 2})
    assert (rw.train(longer).done, "schedule" in last.config) == (2, False)
    again, _ = scheduled(scheduled(config(tmp_path, retain="14d"))[0])
    assert again.schedule == r"night\-\d{8}"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"name": "night"},
            "retain is about runs night after night; give a name with {date}, or on_complete = new",
        ),
        ({"name": None}, "retain is about runs night after night"),
        ({"retain": "14"}, "'14' is no span of time; give one such as 90s, 10m, 12h, 14d or 2w"),
        ({"retain": "0d"}, "'0d' is no span of time"),
    ],
)
def test_what_it_cannot_mean_is_refused_in_one_line(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        config(tmp_path, **{"retain": "14d"} | fields)
    assert says in str(refused.value)
