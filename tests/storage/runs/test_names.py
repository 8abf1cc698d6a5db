"""How runs and rounds are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundweave.storage.runs.names import default_root, local_root, run_address, run_name, stored_round


def test_the_root_is_that_of_the_environment_else_runs_here(monkeypatch) -> None:
    monkeypatch.setenv("ROUNDWEAVE_ROOT", "/somewhere")
    assert default_root() == "/somewhere"
    assert run_address(None, "a") == "/somewhere/a.zarr"
    monkeypatch.delenv("ROUNDWEAVE_ROOT")
    assert default_root() == "runs"
    assert run_address("other", "a.b") == "other/a.b.zarr"
    assert run_address("s3://bucket/runs", "a.b") == "s3://bucket/runs/a.b.zarr"
    assert run_name("s3://bucket/runs/a.b.zarr") == run_name(Path("other/a.b.zarr")) == "a.b"


def test_what_must_be_on_this_machine_is_under_the_root_or_in_runs_here() -> None:
    assert local_root("/somewhere") == Path("/somewhere")
    assert local_root("s3://bucket/runs") == Path("runs")


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        *(("a@3", ("a", 3)), ("a@-1", ("a", -1)), ("a@b@0", ("a@b", 0)), ("a@1@2", ("a@1", 2))),
        *(("folder/a.zarr@12", ("folder/a.zarr", 12)), ("s3://b/a.zarr@-1", ("s3://b/a.zarr", -1))),
        *((place, None) for place in ("a", "@3", "a@", "a@x", "a@--1", "a@1.5", "a@1234567890")),
    ],
)
def test_a_stored_round_is_a_run_and_a_number(place, wanted) -> None:
    assert stored_round(place) == wanted
    if "://" not in place:
        assert stored_round(Path(place)) == wanted


def test_a_file_comes_first(tmp_path) -> None:
    place = tmp_path / "a@3"
    assert stored_round(place) == (str(tmp_path / "a"), 3)
    place.touch()
    assert stored_round(place) is None
