"""Addresses: one spelling each, and names that lead from one to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundweave.storage.errors import UsageError
from roundweave.storage.places import base
from roundweave.storage.places.base import address_of, as_path, full_address, join_address, scheme_of


@pytest.mark.parametrize(
    ("where", "address", "scheme"),
    [
        *(("S3://bucket/runs/", "s3://bucket/runs", "s3"), (Path("s3://bucket/a"), "s3://bucket/a", "s3")),
        *(("runs/", "runs", ""), (Path("/a/b"), "/a/b", ""), ("C:/runs", "C:/runs", ""), ("a:b/c", "a:b/c", "")),
    ],
)
def test_an_address_has_one_spelling_and_a_path_no_scheme(where, address, scheme) -> None:
    assert address_of(where) == address == address_of(address)
    assert scheme_of(where) == scheme


def test_what_is_joined_is_parted_again() -> None:
    for root in ("s3://bucket", "s3://bucket/deep/runs", "runs", "/runs"):
        address = join_address(root, "a.zarr")
        assert (base.above(address), base.last_name(address)) == (root, "a.zarr")


def test_a_name_that_leads_there_by_itself_does_so() -> None:
    assert join_address("s3://bucket", "s3://other/a") == join_address("runs", "s3:/other/a") == "s3://other/a"
    assert join_address("s3://bucket", "/a") == join_address("runs", Path("/a")) == "/a"


def test_a_full_address_is_the_same_from_any_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert full_address("link") == full_address(tmp_path / "real") == str((tmp_path / "real").resolve())
    assert full_address("s3://bucket/runs/") == "s3://bucket/runs"


def test_what_must_be_on_a_disk_is() -> None:
    assert as_path("runs") == Path("runs")
    with pytest.raises(UsageError, match="s3://bucket/a is not on a disk of this machine; give a path"):
        as_path(Path("s3://bucket/a"))
