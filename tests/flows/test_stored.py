"""Stored runs as the facade gives them: networks are built again, and files hold the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import roundweave as rw
from roundweave.storage.errors import DataError, RoundMissing, ShapeMismatch
from roundweave.tasks.data.partitions import forget_examples
from tests.counting import counting
from tests.storage.checkpoints.reading import read_checkpoint


@pytest.fixture(params=["counting", "bfloat16"])
def run(request, stored, train) -> rw.Run:
    if request.param == "counting":
        return stored("counting")
    return train(model="cnn", model_options={"channels": 2}, dtype="bfloat16", partitions=2, rounds=2)


def assert_same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert some.keys() == others.keys()
    assert all(torch.equal(some[name], tensor) for name, tensor in others.items())


def test_a_rounds_network_has_its_weights_and_buffers(run: rw.Run) -> None:
    for number in (0, 1, 2):
        network = run.round(number).network()
        assert not network.training
        assert_same(network.state_dict(), run.round(number).tensors)
    assert_same(run.network().state_dict(), run.round(-1).tensors)


def test_the_network_scores_as_the_round_did(stored) -> None:
    run = stored("plain")
    partitions = rw.Partitions(rw.find_source("digits"), rw.Split(3), held_out=0.5)
    held = [partitions.held_out_part(partition, partition, 3) for partition in range(3)]
    with torch.no_grad():
        right = sum((run.network()(part.inputs).argmax(1) == part.targets).sum().item() for part in held)
    assert right / sum(map(len, held)) == run.round(-1).score.accuracy


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt"])
def test_a_round_is_saved_and_read_to_the_same_bits(run: rw.Run, tmp_path: Path, name: str) -> None:
    run.round(1).save(tmp_path / name)
    assert_same(read_checkpoint(tmp_path / name), run.round(1).tensors)
    run.network().load_state_dict(read_checkpoint(tmp_path / name))


def test_a_place_that_is_no_checkpoint_and_a_partition_that_a_run_has_not_are_refused(stored, tmp_path) -> None:
    run = stored("plain")
    with pytest.raises(rw.UsageError, match="ends in"):
        run.round(1).save(tmp_path / "a.txt")
    for partition in (-1, 3):
        with pytest.raises(
            rw.UsageError, match=f"plain.zarr has no partition {partition}; it has partitions 0 to 2"
        ):
            run.examples(partition)


def test_own_code_is_kept_when_its_file_is_gone(train, own, tmp_path: Path) -> None:
    train(**counting(own), partitions=2, rounds=1, name="kept")
    (tmp_path / "mine.py").unlink()
    assert_same(rw.open_run("kept").network().state_dict(), rw.open_run("kept").round(1).tensors)


def test_code_of_a_run_from_elsewhere_needs_trust(train, own, tmp_path: Path) -> None:
    train(**counting(own), partitions=2, rounds=1, name="theirs", root=tmp_path / "elsewhere")
    run = rw.open_run(tmp_path / "elsewhere/theirs.zarr")
    with pytest.raises(rw.UsageError, match="holds code"):
        run.network()
    assert_same(run.network(trust=True).state_dict(), run.round(1).tensors)
    own_root = rw.open_run("theirs", root=tmp_path / "elsewhere")
    assert own_root.network().first.out_features == 5


def test_the_examples_of_a_partition_have_their_labels(train) -> None:
    train(partitions=3, rounds=3, resplit_every=2, local_steps=1, name="dealt", split="dirichlet:0.4")
    run, digits = rw.open_run("dealt"), rw.find_source("digits").load(0, 1).train
    partitions = rw.Partitions(rw.find_source("digits"), rw.Split(3, "dirichlet:0.4", resplit_every=2))
    for round, number in ((1, 0), (2, 0), (3, 1), (-1, 1)):
        counts = run.label_counts(round)
        assert counts.equals(rw.label_counts(partitions, number))
        for partition in range(3):
            table = run.examples(partition, round)
            assert table.index.tolist() == partitions.rows(partition, number).tolist()
            assert sorted(table.index) == np.flatnonzero(partitions.assignment(number) == partition).tolist()
            assert table["label"].tolist() == digits.targets.numpy()[table.index].tolist()
            told = table["label"].value_counts()
            assert {label: count for label, count in counts.loc[partition].items() if count} == {
                **told.to_dict(),
                "size": len(table),
            }


def test_examples_of_other_data_are_refused(train, tmp_path: Path) -> None:
    text = "a,b\n" + "".join(f"{n},{n % 2}\n" for n in range(40))
    (tmp_path / "table.csv").write_text(text)
    train(data=f"csv:{tmp_path}/table.csv", model="logistic", partitions=2, rounds=1, name="table")
    assert rw.open_run("table").examples(0)["label"].isin([0, 1]).all()
    (tmp_path / "table.csv").write_text(text.replace("3,1", "3,0"))
    forget_examples()  # as in another process
    with pytest.raises(DataError, match=r"table: other examples, of digest .*; restore the recorded ones"):
        rw.open_run("table").examples(0)


def test_data_of_a_run_from_elsewhere_need_trust(train, own, tmp_path: Path) -> None:
    source = "import torch\ndef data():\n    return torch.zeros(20, 2), torch.arange(20) % 2\n"
    fields = {"data": f"{own(source)}:data", "model": "logistic", "partitions": 2, "rounds": 1, "name": "theirs"}
    train(**fields, root=tmp_path / "elsewhere")
    run = rw.open_run(tmp_path / "elsewhere/theirs.zarr")
    for ask in (run.label_counts, lambda **trust: run.examples(0, **trust)):
        with pytest.raises(rw.UsageError, match="holds code"):
            ask()
        assert len(ask(trust=True))


def test_where_each_partition_has_data_of_its_own_there_is_no_split(train, own) -> None:
    source = "import torch\ndef data(partition, partitions):\n    return torch.zeros(9, 2), torch.arange(9) % 3\n"
    train(data=f"{own(source)}:data", model="logistic", partitions=2, rounds=1, held_out=0, name="own")
    run = rw.open_run("own")
    with pytest.raises(RoundMissing, match="has no split: partitions brought their own"):
        run.examples(0)
    assert run.label_counts()["size"].tolist() == [9, 9]


LOOKING = """
import sys
for name in ("prefect", "distributed", "dask"):
    sys.modules[name] = None
import matplotlib
matplotlib.use("Agg")
import roundweave as rw
run, other = rw.open_run("plain"), rw.open_run("momentum")
repr(run), str(run.round(1)), run.history(), run["fc1.weight"].values, run.ds.load(), run.tree.load()
run.best("accuracy"), run.diff(0, 1), run.changes(), run.divergence(), run.examples(1), run.label_counts()
run.network(), rw.list_runs(), rw.compare([run, other]).config, run.plot.divergence(), run.plot.changes()
rw.compare([run, other]).plot.history(ax=run.plot.history()), run.plot.refusals()
"""


@pytest.mark.thorough
def test_looking_needs_neither_prefect_nor_dask(stored) -> None:
    for name in ("plain", "momentum"):
        stored(name)
    line = [sys.executable, "-W", "error", "-c", LOOKING]
    done = subprocess.run(line, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_best_round_has_a_network(stored) -> None:
    best = stored("plain").best("accuracy")
    assert_same(best.network().state_dict(), best.tensors)


def test_code_that_now_builds_another_network_is_said(train, own, monkeypatch) -> None:
    monkeypatch.setenv("WIDTH", "10")
    source = "import os, torch\ndef model(): return torch.nn.Conv2d(1, int(os.environ['WIDTH']), 8)\n"
    source += "def loss(outputs, targets): return torch.nn.functional.cross_entropy(outputs.flatten(1), targets)"
    file = own(source)
    train(model=f"{file}:model", loss=f"{file}:loss", held_out=0, partitions=2, rounds=1, name="changing")
    monkeypatch.setenv("WIDTH", "11")
    with pytest.raises(ShapeMismatch, match="round 1 is of another architecture"):
        rw.open_run("changing").network()
