"""How runs and rounds are called."""

from __future__ import annotations

from pathlib import Path

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


def test_a_stored_round_is_a_run_and_a_number() -> None:
    there = {"a@3": ("a", 3), "a@-1": ("a", -1), "a@b@0": ("a@b", 0), "a@1@2": ("a@1", 2)}
    there |= {"folder/a.zarr@12": ("folder/a.zarr", 12)}
    there |= dict.fromkeys(("a", "@3", "a@", "a@x", "a@--1", "a@1.5", "a@1234567890"))
    for place, wanted in there.items():
        assert stored_round(place) == stored_round(Path(place)) == wanted
    assert stored_round("s3://b/a.zarr@-1") == ("s3://b/a.zarr", -1)
