"""Dates in configurations, by which each night is trained on the data of its day."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.config.files import read_toml
from roundweave.flows.planning.naming import configure
from roundweave.flows.plugins.scheduled.checking import check
from roundweave.flows.plugins.scheduled.dates import dated
from roundweave.storage.errors import DataError, UsageError
from roundweave.storage.runs.listing import looked_through
from tests.flows.command.in_process import refused
from tests.flows.nights import night, trained

OWN = """
import torch

def data(day, scale=1):
    with open({calls!r}, "a") as calls:
        print(day, file=calls)
    drawn = torch.Generator().manual_seed(int(day))
    return scale * torch.randn(60, 4, generator=drawn), torch.arange(60) % 2

def each(partition, partitions, *, day):
    return torch.full((20, 4), float(day)), (torch.arange(20) + partition) % 2
"""
"""The examples of a day, all at once or by partition."""


def at(text: str, due: datetime, **fields: Any) -> Any:
    return dated(rw.TrainConfig(data=text, **fields), due).data


NEW_YEAR = datetime(2031, 1, 1, 0, 30, tzinfo=UTC)


def test_a_date_stands_for_the_day_in_the_zone_of_the_run() -> None:
    assert at("npz:{date}.npz", NEW_YEAR, timezone="UTC") == "npz:20310101.npz"
    assert at("npz:{date-1:%Y/%m/%d}.npz", NEW_YEAR, timezone="UTC") == "npz:2030/12/31.npz"
    assert at("npz:{date+1}.npz", NEW_YEAR, timezone="America/New_York") == "npz:20310101.npz"
    assert at("npz:{date}/{date-31:%j}.npz", NEW_YEAR, timezone="Asia/Tokyo") == "npz:20310101/335.npz"


@given(days=st.integers(-9999, 9999))
def test_days_are_counted_by_the_calendar(days: int) -> None:
    text = at(f"npz:{{date{days:+d}:%Y-%m-%d}}", NEW_YEAR, timezone="UTC")
    assert (datetime.fromisoformat(text[4:]) - datetime(2031, 1, 1)).days == days


def test_a_day_before_a_clock_is_changed_is_one_day_before() -> None:
    after = datetime(2026, 3, 29, 22, 30, tzinfo=UTC)  # 0:30 in Berlin, where the 29th had 23 hours
    assert at("npz:{date-1}", after, timezone="Europe/Berlin") == "npz:20260329"


def test_every_text_of_data_start_name_and_options_may_have_dates() -> None:
    fields = {"name": "a-{date:%d.%m}", "start_from": "a-{date-1:%d.%m}@-1", "timezone": "UTC", "partitions": 2}
    fields |= {"data": ("npz:{date-1}.npz", "npz:x.npz"), "model_options": {"since": "{date}"}}
    fields |= {"data_options": {"days": ["{date-1}", 3], "at": {"day": "{date}"}}}
    now = dated(rw.TrainConfig(**fields), NEW_YEAR)
    assert (now.name, now.start_from) == ("a-01.01", "a-31.12@-1")
    assert now.data == ("npz:20301231.npz", "npz:x.npz")
    assert now.data_options == {"days": ["20301231", 3], "at": {"day": "20310101"}}
    assert now.model_options == {"since": "20310101"}
    assert dated(now) == now


def test_a_day_that_is_given_is_that_of_all_texts() -> None:
    """A night that was missed is trained later, under its own name; a second one of that day follows the first."""
    fields = {"name": "a-{date}", "data_options": {"days": "{date-1:%Y-%m-%d %H}"}, "date": "2031-03-01"}
    missed = configure(rw.TrainConfig(**fields, timezone="Asia/Tokyo"))
    assert (missed.name, missed.data_options) == ("a-20310301", {"days": "2031-02-28 00"})
    assert dated(rw.TrainConfig(**fields), NEW_YEAR).name == "a-20310301"
    given = {"name": "a-{date}", "date": "2031-03-01", "on_complete": "new"}
    assert [trained(**given).name for _ in range(2)] == ["a-20310301", "a-20310301-2"]
    assert "date" not in rw.open_run("a-20310301").config


@pytest.mark.parametrize("text", ["{date*2}", "{date", "{date-1.5}", "{date:}", "{date-1", "{date-12345}"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="has no date of a known form; give"):
        dated(rw.TrainConfig(data_options={"day": text}), NEW_YEAR)


def test_a_name_that_no_run_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a run name of letters"):
        configure(rw.TrainConfig(name="a-{date:%Y/%m}"))


def test_paths_with_dates_go_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('data = "npz:days/{date:%Y:%m}.npz"\nmodel = "nets/{date}.py:net"\n')
    values = read_toml(file)
    assert values["data"] == f"npz:{tmp_path}/days/{{date:%Y:%m}}.npz"


def test_the_day_reaches_the_function_and_a_replay_reads_it_again(tmp_path: Path) -> None:
    calls, file = tmp_path / "calls", tmp_path / "days.py"
    file.write_text(OWN.format(calls=str(calls)))
    fields = {"data": f"{file}:data", "data_options": {"day": "{date-1}"}, "timezone": "UTC"}
    config = dated(night(**fields, name="a-{date}"), NEW_YEAR)
    run = train_flow.fn(config)
    assert run.name == "a-20310101"
    assert run.config["data_options"] == {"day": "20301231"}
    assert run.replay("all").identical
    assert {*calls.read_text().split()} == {"20301231"}
    other = train_flow.fn(config.model_copy(update={"name": "b", "data_options": {"day": "20301230"}}))
    assert other.attributes["data"]["digest"] != run.attributes["data"]["digest"]
    with pytest.raises(rw.RoundweaveError, match="is another experiment"):
        train_flow.fn(config.model_copy(update={"name": "b"}))


def test_options_reach_functions_of_a_partition_too(own) -> None:
    fields = {"data": f"{own(OWN.format(calls='/dev/null'))}:each", "held_out": 0.0}
    run, other = (trained(**fields, data_options={"day": day}, name=f"day-{day}") for day in "78")
    assert run.digest != other.digest
    assert run.replay("all").identical
    fields |= {"start_from": "day-7@-1", "on_unchanged": "skip", "name": "c"}  # what only the partitions read
    assert [trained(**fields, data_options={"day": day}).name for day in "78"] == ["day-7", "c"]


def test_options_that_nobody_takes_are_refused(own, tmp_path: Path) -> None:
    data = f"{own(OWN.format(calls='/dev/null'))}:data"
    with pytest.raises(UsageError, match=r"takes no option 'dya'; did you mean day\?"):
        trained(data=data, data_options={"dya": "1"})
    with pytest.raises(DataError, match="missing 1 required positional argument: 'day'"):
        trained(data=data)
    assert not looked_through(tmp_path / "runs")


def test_a_schedule_has_no_day_of_its_own(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.toml").write_text('data = "digits"\nname = "a-{date}"\ndate = "2031-03-01"')
    said = "date names the day of one training; leave date out of a schedule"
    assert refused(capsys, "serve", f"{tmp_path}/a.toml") == (2, said)


def test_serving_begins_before_the_data_of_a_day_are_there(tmp_path: Path, capfd) -> None:
    check(rw.TrainConfig(data=f"npz:{tmp_path}/{{date}}.npz"))
    assert capfd.readouterr().err.startswith("today's data cannot be read yet")
    with pytest.raises(DataError):
        check(rw.TrainConfig(data=f"npz:{tmp_path}/missing.npz"))
    with pytest.raises(UsageError):
        check(rw.TrainConfig(data=f"npz:{tmp_path}/{{date}}.npz", model="nothing"))


def test_a_night_with_the_examples_of_its_parent_is_skipped_if_the_configuration_says_so(
    tmp_path: Path, capfd
) -> None:
    def begin(name: str, value: float, start: str = "night-*@-1") -> Any:
        np.savez(tmp_path / name, inputs=np.full((40, 3), value, np.float32), targets=np.arange(40) % 2)
        return trained(start_from=start, on_unchanged="skip", name=name, data=f"npz:{tmp_path}/{name}.npz")

    first, second = begin("night-1", 1), begin("night-2", 2)
    assert [each.name for each in (first, second)] == ["night-1", "night-2"]
    capfd.readouterr()
    assert begin("night-3", 2).name == "night-2"
    digest = second.attributes["data"]["digest"][:12]
    said = f"the examples are those of night-2, digest {digest}; skipped, as on_unchanged says\n"
    assert capfd.readouterr().err == said
    assert begin("night-4", 1).name == "night-4"
    assert list(looked_through(tmp_path / "runs")) == ["night-1", "night-2", "night-4"]
    with pytest.raises(UsageError, match="on_unchanged compares with the run of start_from"):
        trained(on_unchanged="skip", name="night-5", data=f"npz:{tmp_path}/night-1.npz")
    first.round(-1).save(tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match=r"needs the examples of a run, and .*a.safetensors is a file"):
        begin("night-5", 1, f"{tmp_path}/a.safetensors")
