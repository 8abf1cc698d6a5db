"""After a night the older runs of its schedule go, of no other; and what fails of that fails no training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.planning.naming import configure
from roundweave.storage.errors import PlaceError
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.runs.names import run_address
from tests.flows.nights import night

DAY = 86_400
now = time.time


def config(**fields: Any) -> rw.TrainConfig:
    return night(**{"rounds": 1, "local_steps": 1, "name": "night-{date}"} | fields)


@pytest.fixture
def there() -> Callable[[], list[str]]:
    """The names of the runs that are there, sorted."""
    return lambda: sorted(looked_through(os.environ["ROUNDWEAVE_ROOT"]))


def nights(monkeypatch: pytest.MonkeyPatch, *days: int, **fields: Any) -> list[str]:
    """The names of the runs that are begun so many days ago, one after the other."""
    names = []
    for ago in days:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda ago=ago: now() - ago * DAY)
            names.append(rw.train(config(**fields), bar=False).name)
    return names


@pytest.mark.parametrize("train", [pytest.param(train_flow.fn, marks=pytest.mark.thorough), rw.train])
def test_older_runs_of_the_schedule_go_and_no_others(there, monkeypatch, capfd, train) -> None:
    old, young = nights(monkeypatch, 20, 5)
    others = nights(monkeypatch, 20, name="night") + nights(monkeypatch, 21, name="night-x{date}")
    capfd.readouterr()
    last = train(config(retain="14d")).name
    assert there() == sorted([young, *others, last])
    said = capfd.readouterr().err
    assert f"retain 14d removed {old}, 0." in said
    train(config(name="other-{date}", retain="14d"))
    assert "retain" not in capfd.readouterr().err


@pytest.mark.thorough
def test_names_that_follow_a_complete_run_are_of_its_schedule(there, monkeypatch) -> None:
    again = {"name": "night", "on_complete": "new"}
    *old, young = nights(monkeypatch, 30, 20, 20, 3, **again)
    nights(monkeypatch, 30, name="nightly")
    assert (old[0], len({*old})) == ("night", 3)
    last = rw.train(config(retain="2w", **again)).name
    assert there() == sorted([young, "nightly", last])


def test_a_run_that_is_written_stays_and_so_does_the_training(there, monkeypatch, capfd) -> None:
    (old,) = nights(monkeypatch, 20)
    with hold_lease(place_of(run_address(os.environ["ROUNDWEAVE_ROOT"], old)), "mine"):
        last = rw.train(config(retain="14d"))
    assert (last.status, there()) == ("complete", sorted([old, last.name]))
    assert f"{old} stays, though retain is 14d: " in capfd.readouterr().err


def test_a_failure_of_the_removal_is_one_line_and_fails_nothing(monkeypatch, capfd) -> None:
    def failing(*_: object, **__: object) -> None:
        raise PlaceError("the disk is gone")

    monkeypatch.setattr("roundweave.flows.plugins.retention.retaining.looked_through", failing)
    assert rw.train(config(retain="1h")).status == "complete"
    said = [line for line in capfd.readouterr().err.splitlines() if "older runs" in line]
    assert said == [
        "not all older runs were removed (PlaceError: the disk is gone); the run itself is not affected"
    ]


def test_the_night_itself_stays_however_long_it_took(monkeypatch) -> None:
    name = nights(monkeypatch, 2)[0]
    monkeypatch.setattr(time, "strftime", lambda *_: "")
    assert rw.train(config(name=name, rounds=2, schedule="night.*", retain="1h")).done == 2


def test_a_night_is_resumed_though_its_name_has_no_date_any_more() -> None:
    last = rw.train(config(retain="14d"))
    longer = resumed_config(last.name, None, False, {"rounds": 2})
    assert (rw.train(longer).done, "schedule" in last.config) == (2, False)
    again = configure(configure(config(retain="14d")))
    assert again.schedule == r"night\-\d{8}"
