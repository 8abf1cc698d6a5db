"""Nights whose data drift: what moved is said and recorded, and a night is rejected before it trains if asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import roundweave as rw
from roundweave.flows.planning.naming import configure, find
from roundweave.storage.errors import CheckpointError, StoreDamaged, UsageError
from roundweave.storage.rounds.columns import KEY
from roundweave.storage.runs.names import holders
from roundweave.tasks.data.description import columns_of
from tests.flows import nights
from tests.flows.command.in_process import run as command
from tests.rows import second

OWN = """
import torch
def part(partition, partitions, shift=0.0, missing=0):
    inputs = torch.randn(300, 3, generator=torch.Generator().manual_seed(partition)) + shift
    inputs[:missing, 1] = float("nan")
    return inputs, (torch.arange(300) + partition) % 2
"""


def table(
    rows: int = 600, classes: tuple[str, ...] = ("cat", "dog"), shift: float = 0.0, seed: int = 0
) -> pd.DataFrame:
    drawn = np.random.default_rng(seed)
    columns = {"age": drawn.normal(4 + shift, 1, rows), "flag": drawn.integers(0, 2, rows)}
    return pd.DataFrame(columns | {"kind": np.array(classes)[drawn.integers(0, len(classes), rows)]})


NIGHTS = {
    "shifted": (table(shift=1.5), ["age moved much"]),
    "taller": (table().assign(height=1.0)[["age", "flag", "height", "kind"]], ["height is new"]),
    "without": (table()[["age", "kind"]], ["flag is gone"]),
    "birds": (table(classes=("cat", "dog", "bird")), ["targets 'bird' is new", "targets moved much"]),
    "one class": (table(classes=("cat",)), ["targets 'dog' is gone", "targets moved much"]),
}


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    """Train on a table, or on other data."""

    def train(data: pd.DataFrame | str, name: str, **fields: Any) -> rw.Run:
        if isinstance(data, pd.DataFrame):
            data.to_csv(file := f"{tmp_path}/{name}.csv", index=False)
            data = f"csv:{file}"
        return nights.trained(data=data, name=name, **fields)

    return train


def test_a_description_of_a_table_is_recorded_by_column_and_images_are_one(trained, stored) -> None:
    run = trained(table(), "night-1")
    described = run.description
    assert list(described.index) == ["age", "flag", "targets"]
    assert described.loc["age", "mean"] == pytest.approx(table()["age"].mean())
    assert described.loc["age", "deviation"] == pytest.approx(table()["age"].std(ddof=0))
    shares = table()["kind"].value_counts(normalize=True)
    assert described.loc["targets", "classes"] == f"cat {shares['cat']:.1%}, dog {shares['dog']:.1%}"
    assert described["examples"].tolist() == [600] * 3
    assert described["missing"].tolist() == [0.0] * 3
    assert list(stored("plain").description.index) == ["inputs", "targets"]


def night_by_night(first: str, *others: str) -> list[Any]:
    """Nights as parameters, of which one is in the first suite."""
    return [first, *(pytest.param(night, marks=pytest.mark.thorough) for night in others)]


@pytest.mark.parametrize("night", night_by_night(*NIGHTS))
def test_a_night_that_has_drifted_is_rejected_before_it_trains(trained, tmp_path: Path, capfd, night: str) -> None:
    data, begins = NIGHTS[night]
    trained(table(), "night-1")
    fields = {"start_from": "night-*@-1", "drift": "refuse", "promote": "champion"}
    for _ in range(2):  # it stays so when it is tried again
        run = trained(data, "night-2", **fields)
        assert (run.status, run.done, run.parent) == ("rejected", 0, "night-1@2")
        assert len(run.judgement.reasons) == len(begins)
        assert all(map(str.startswith, run.judgement.reasons, begins))
    assert f"drift: {begins[0]}" in capfd.readouterr().err
    assert run.verify().sound
    assert holders(tmp_path / "runs") == {}
    following = find(configure(nights.night(name="night-3", start_from="night-*@-1")))[0]
    assert f"{following.start_from}".endswith("night-1.zarr@-1")


@pytest.mark.thorough
def test_a_night_that_fits_neither_gate_nor_validation_data_is_rejected_for_its_drift(trained, tmp_path) -> None:
    table(300, seed=1).to_csv(tmp_path / "validation.csv", index=False)
    gate = {"validation": f"csv:{tmp_path}/validation.csv", "accept": "validation_accuracy >= 0.1"}
    gate |= {"best": "validation_accuracy", "drift": "refuse", "start_from": "night-*@-1"}
    assert trained(table(), "night-1", **gate).status == "complete"
    run = trained(table(classes=("cat",)), "night-2", **gate)
    assert (run.status, run.done) == ("rejected", 0)
    assert run.judgement.reasons[0].startswith("targets 'dog' is gone")


@pytest.mark.parametrize("night", night_by_night("taller", "birds"))
def test_what_the_network_does_not_fit_is_named_first(trained, capfd, night: str) -> None:
    data, begins = NIGHTS[night]
    trained(table(), "night-1")
    with pytest.raises(CheckpointError):
        trained(data, "night-2", start_from="night-1@-1")
    assert capfd.readouterr().err.startswith(f"drift: {begins[0]}")


def test_what_has_moved_is_told_and_trained(trained, capfd) -> None:
    trained(table(), "night-1")
    run = trained(table(shift=1.5), "night-2", start_from="night-1@-1")
    assert (run.status, run.done) == ("complete", 2)
    assert capfd.readouterr().err.count("drift: age moved much, psi ") == 1
    drift = run.drift().set_index("column")
    assert drift["what"].to_dict() == {"age": "moved much", "flag": "stable", "targets": "stable"}
    assert drift.equals(run.drift(rw.open_run("night-1", run.path.parent)).set_index("column"))


def test_a_night_like_the_one_before_and_a_first_one_are_not_refused(trained, capfd) -> None:
    fields = {"start_from": "night-*@-1", "drift": "refuse"}
    assert [trained(table(), f"night-{n}", **fields).status for n in (1, 2)] == ["complete"] * 2
    assert "drift:" not in capfd.readouterr().err


@pytest.mark.thorough
def test_what_recorded_no_columns_cannot_be_compared(trained, tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("roundweave.tasks.data.description.columns_of", lambda dataset, least: {})
        old = trained(table(), "old")
    with pytest.raises(UsageError, match="old recorded nothing"):
        _ = old.description
    told = trained(table(), "told", start_from="old@-1")
    assert told.status == "complete"
    with pytest.raises(UsageError, match="told was compared with no parent"):
        told.drift()
    told.round(-1).save(tmp_path / "told.safetensors")
    for start in ("old@-1", f"{tmp_path}/told.safetensors"):
        with pytest.raises(
            UsageError, match=r"drift = refuse: .* has no record of its columns; give drift = tell"
        ):
            trained(table(), "new", start_from=start, drift="refuse")


def test_partitions_that_lie_apart_are_described_where_they_lie(trained, client, tmp_path: Path) -> None:
    """Their columns are those of all examples at once, which one process has."""
    (tmp_path / "own.py").write_text(OWN)
    data = f"{tmp_path}/own.py:part"
    run = trained(data, "apart", executor="graph", scheduler=client.scheduler.address)
    inputs = torch.cat([torch.randn(300, 3, generator=torch.Generator().manual_seed(n)) for n in range(2)])
    whole = columns_of(rw.Dataset(rw.Examples(inputs, torch.arange(600) % 2)))
    assert {name: each.bins for name, each in run.columns.columns.items()} == {n: e.bins for n, e in whole.items()}
    assert run.columns.columns["targets"] == whole["targets"]
    for options, column in (({"shift": 3.0}, "inputs 0"), ({"missing": 150}, "inputs 1")):
        again = trained(
            data, column.replace(" ", "-"), start_from="apart@-1", drift="refuse", data_options=options
        )
        assert again.status == "rejected"
        assert any(reason.startswith(column) for reason in again.judgement.reasons)
    assert "50.0% missing" in again.judgement.reasons[0]


def test_a_description_that_was_changed_is_found(trained) -> None:
    run = trained(table(), "night-1")
    file = run.path / KEY
    file.write_text(file.read_text().replace('"examples": 600', '"examples": 601', 1))
    assert [f"{each}" for each in run.verify().findings] == [
        f"{KEY}: it is not what was written; restore the file from a copy"
    ]
    with pytest.raises(StoreDamaged):
        _ = run.description
    file.unlink()
    assert not run.verify().sound


def test_the_command_ends_with_3_and_shows_what_has_drifted(trained, capsys) -> None:
    trained(table(), "night-1")
    trained(table(shift=1.5), "night-2", start_from="night-1@-1", drift="refuse")
    assert command(capsys, "resume", "night-2")[0] == 3
    assert "drift      age moved much" in command(capsys, "show", "night-2")[1]
    shown = json.loads(command(capsys, "show", "night-2", "--json")[1])
    assert [each["what"] for each in shown["drift"]] == ["moved much", "stable", "stable"]
    assert json.loads(command(capsys, "show", "night-1", "--json")[1])["drift"] is None


@pytest.mark.parametrize("fixed", ["reference", "validation"])
def test_one_shifted_first_night_does_not_reject_the_good_ones_beside_a_fixed_reference(
    trained, tmp_path: Path, capfd, fixed: str
) -> None:
    table(rows=300, seed=1).to_csv(tmp_path / "fixed.csv", index=False)
    nightly = {"drift": "refuse", "target": "kind", fixed: f"csv:{tmp_path}/fixed.csv"}
    nightly |= {"start_from": "champion@-1", "promote": "champion", "accept": "loss < 9"}
    first = trained(table(shift=1.5), "first", **nightly)
    second = trained(table(), "second", **nightly)
    third = trained(table(shift=1.5), "third", **nightly)
    assert [run.status for run in (first, second, third)] == ["rejected", "complete", "rejected"]
    assert holders(tmp_path / "runs") == {"champion": "second"}
    assert first.judgement.reasons[0].startswith("age moved much, psi ")
    assert "drift from the reference: age moved much" in capfd.readouterr().err


def test_a_reference_that_cannot_be_read_is_said(trained, tmp_path: Path) -> None:
    with pytest.raises(rw.RoundweaveError, match=r"absent\.csv"):
        trained(table(), "a", target="kind", reference=f"csv:{tmp_path}/absent.csv")


def halved(row):
    return row / 2


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"drift": "refuse"}, "rejected"), *second(({}, "complete"), ({"drift": "refuse", "again": 1}, "complete"))],
)
def test_rows_that_are_validation_data_are_counted_and_rejected(
    trained, tmp_path: Path, capfd, fields: dict[str, Any], status: str
) -> None:
    """Rows 300 to 364 of the day, 25 of them twice, are validation data, whose own rows may be equal by chance."""
    fixed, day = table(200, seed=1), table(300, seed=2)
    again = fixed.head(fields.pop("again", 0))
    pd.concat([fixed, again]).to_csv(tmp_path / "fixed.csv", index=False)
    rows = pd.concat([day, fixed.head(40), fixed.head(25)])[["flag", "age", "kind"]]
    fields |= {"validation": f"csv:{tmp_path}/fixed.csv", "target": "kind", "transform": halved}
    run = trained(rows, "night-1", **fields)
    dealt = rw.Partitions(rw.find_source(f"csv:{tmp_path}/night-1.csv", "kind"), rw.Split(2))
    known = np.concatenate([dealt.rows(partition, 0) for partition in range(2)])
    both, twice = (known >= 300).sum(), len(known) - len({row - 40 * (row >= 340) for row in known})
    said = f"{both} of {len(known)} rows to train on are validation data, too"
    told = capfd.readouterr().err
    assert said in told
    assert f"{twice} of {len(known)} rows to train on are there before" in told
    assert run.status == status
    assert status == "complete" or run.judgement.reasons[0].startswith(said)
    assert trained(day, "night-2", **fields).status == "complete"
    assert "rows to train on" not in capfd.readouterr().err
