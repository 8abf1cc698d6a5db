"""The table of sources: every name builds, and every other text is one clear line before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from roundweave import Dataset, Examples
from roundweave.flows.config.files import read_toml
from roundweave.storage.errors import DataError
from roundweave.tasks.data.sources.images import Digits, Idx
from roundweave.tasks.data.sources.own import Own
from roundweave.tasks.data.sources.table import Each, Source, find_source, keep_source
from roundweave.tasks.own_code.code import find_code


def test_names_stand_for_sources(own) -> None:
    assert find_source("digits") == Digits()
    assert find_source("mnist:a") == Idx("mnist", str(Path("a").resolve()))
    assert find_source("fashion-mnist:/b") == Idx("fashion-mnist", "/b")
    code = find_code(f"{own('def data(): pass')}:data")
    assert find_source(code) == find_source(code.reference) == Own(code)


@pytest.mark.parametrize("name", ["t.csv", "deep/t.parquet", "x.npz", "targets.npy", "a.zarr"])
def test_a_file_is_named_by_its_suffix_wherever_it_is_named(name: str, tmp_path: Path) -> None:
    kind = name.rpartition(".")[2]
    assert keep_source(name) == f"{kind}:{Path(name).resolve()}"
    (tmp_path / "train.toml").write_text(f'data = "{name}"')
    assert read_toml(tmp_path / "train.toml")["data"] == f"{kind}:{tmp_path / name}"


@dataclass(frozen=True)
class Number(Source):
    """One example, of a number."""

    number: float

    def load(self, partition: int, partitions: int) -> Dataset:
        """The example."""
        return Dataset(Examples(torch.tensor([[self.number]]), torch.zeros(1, dtype=torch.int64)))


def test_each_partition_has_what_its_source_loads() -> None:
    each = Each((Number(1.0), Number(2.0)))
    assert each.load(1, 2).train.inputs.item() == 2.0
    with pytest.raises(DataError, match="2 data sets make as many partitions, not 3"):
        each.load(0, 3)
