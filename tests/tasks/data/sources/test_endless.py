"""Files without an end, and larger than memory: none is opened, whatever format is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roundweave.storage.errors import DataError
from roundweave.tasks.data.sources.table import find_source

FORMATS = ("npz", "csv", "parquet", "text", "npy")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe that nobody writes to: whoever opens it waits for ever."""
    (tmp_path / "targets.npy").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("format", FORMATS)
def test_pipes_and_devices_are_refused_before_they_are_opened(pipe: Path, format: str) -> None:
    link = pipe.with_name("link")
    link.symlink_to("/dev/zero")
    for path in (pipe, link, Path("/dev/zero")):
        with pytest.raises(DataError, match=r"a pipe or a device|there is no file /dev/targets\.npy"):
            find_source(f"{format}:{path}").load(0, 1)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("data", ["parquet:{folder}", "zarr:{folder}"])
def test_so_are_those_in_a_folder(pipe: Path, data: str) -> None:
    pipe.rename(pipe.with_name("a.parquet"))
    with pytest.raises(DataError, match=r"a\.parquet is a folder, a pipe or a device"):
        find_source(data.format(folder=pipe.parent)).load(0, 1)


@pytest.mark.parametrize("format", ["csv", "text"])
def test_files_without_a_size_or_larger_than_memory_are_refused(tmp_path: Path, format: str) -> None:
    with pytest.raises(DataError, match="it is empty"):
        find_source(f"{format}:/proc/self/environ").load(0, 1)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"GB of memory are free"):
        find_source(f"{format}:{tmp_path}/sparse").load(0, 1)


def test_a_missing_chunk_of_zarr_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import numpy as np
    import zarr

    group = zarr.open_group(str(tmp_path / "z"), mode="w")
    for name, values in (("inputs", np.ones((8, 2))), ("targets", np.arange(8) % 2 + 1)):
        group.create_array(name, data=values, chunks=(4, *values.shape[1:]))
    find_source(f"zarr:{tmp_path}/z").load(0, 1)
    assert caplog.text == ""
    (tmp_path / "z/inputs/c/1/0").unlink()
    find_source(f"zarr:{tmp_path}/z").load(0, 1)
    assert "inputs: 1 of 2 chunks are missing, and are read as 0.0; restore those" in caplog.text
