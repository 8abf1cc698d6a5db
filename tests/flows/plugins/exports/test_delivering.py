"""Accepted nights are exported to what their configuration names: folders, files, and MLflow with its registry."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

import roundweave as rw
from roundweave.flows.config.files import from_anywhere, read_toml
from roundweave.flows.plugins.exports.folders import write_folder
from roundweave.flows.plugins.scheduled.checking import check
from roundweave.flows.plugins.scheduled.dates import dated
from roundweave.storage.errors import PlaceError, UsageError
from roundweave.storage.runs.names import holder_of
from tests.flows.command.in_process import WITHOUT_PREFECT, run
from tests.flows.nights import night, trained
from tests.test_docs import HERE


def exported(folder: Path) -> torch.Tensor:
    return safetensors.torch.load_file(folder / "model.safetensors")["1.weight"]


@pytest.mark.dear("MLflow and its registry, which take seconds to import and to begin")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The ``noload`` loader strategy")
def test_mlflow_predicts_from_a_table_whatever_the_order_of_its_columns_and_follows_the_alias(
    tmp_path, monkeypatch, capsys
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    drawn = np.random.default_rng(0)
    table = pd.DataFrame(drawn.normal(size=(200, 3)), columns=[*"abc"])
    labels = np.array(["cat", "dog"])[(table["a"] > 0).astype(int)]
    table.assign(kind=labels).to_csv("t.csv", index=False)
    fields = {
        "data": "csv:t.csv",
        "target": "kind",
        "accept": "loss < 9",
        "promote": "champion",
        "export": "mlflow",
    }
    first, second = (trained(name=name, rounds=rounds, **fields) for name, rounds in (("first", 2), ("second", 6)))

    def predicted() -> pd.DataFrame:
        model = mlflow.pyfunc.load_model("models:/roundweave@champion")
        assert model.metadata.get_input_schema().input_names() == [*"abc"]
        return model.predict(table[["c", "a", "b"]])

    def outputs(run: rw.Run) -> torch.Tensor:
        weight, bias = (run.round("last").tensors[name] for name in ("1.weight", "1.bias"))
        return torch.tensor(table.to_numpy(np.float32)) @ weight.T + bias

    assert list(predicted().columns) == ["cat", "dog"]
    assert torch.allclose(torch.tensor(predicted().to_numpy()), outputs(second))
    assert run(capsys, "alias", "champion", "first")[0] == 0
    assert torch.allclose(torch.tensor(predicted().to_numpy()), outputs(first))
    versions = mlflow.MlflowClient().search_model_versions("name='roundweave'")
    assert len(versions) == 2, "a version of the earlier champion is there already"
    assert run(capsys, "alias", "champion", "--take-back")[0] == 0
    with pytest.raises(mlflow.MlflowException, match="champion"):
        mlflow.MlflowClient().get_model_version_by_alias("roundweave", "champion")


@pytest.mark.dear("MLflow and its registry, which take seconds to import and to begin")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The ``noload`` loader strategy")
def test_models_lie_beside_a_database_in_a_file_wherever_the_process_was(tmp_path, monkeypatch) -> None:
    """As a worker of a pool trains each night in a folder that goes when the night ends."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    trained(name="first", export="mlflow", promote="champion", root=tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "gone")
    assert mlflow.pyfunc.load_model("models:/roundweave@champion").predict(
        np.zeros((1, 1, 8, 8), np.float32)
    ).shape == (1, 10)


def test_bytes_are_scaled_as_in_training(tmp_path, monkeypatch) -> None:
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(60) % 3)
    night = trained(data=f"npz:{tmp_path}/images.npz", name="a")
    folder = write_folder(night, night.round(2), str(tmp_path / "out"), pyfunc=True)
    weight, bias = (night.round(2).tensors[name] for name in ("1.weight", "1.bias"))
    scaled = torch.tensor(images / 255, dtype=torch.float32).flatten(1)
    predicted = torch.tensor(np.asarray(pyfunc.load_model(str(folder)).predict(images)))
    assert torch.allclose(predicted, scaled @ weight.T + bias, atol=1e-5)


@pytest.mark.parametrize("encode", ["one-hot", "ordinal"])
def test_a_table_with_texts_is_encoded_as_in_training(tmp_path, encode) -> None:
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    table = pd.DataFrame({"city": ["Rome", "Oslo", "Paris"] * 20, "age": range(60), "ill": [0, 1] * 30})
    table.to_csv(tmp_path / "t.csv", index=False)
    night = trained(data=f"csv:{tmp_path}/t.csv", name="a", encode=encode, lr=1e-4)
    folder = write_folder(night, night.round(2), str(tmp_path / "out"), pyfunc=True)
    weight, bias = (night.round(2).tensors[name] for name in ("1.weight", "1.bias"))
    rows = [[0, 0, 1, 7], [1, 0, 0, 8]] if encode == "one-hot" else [[2, 7], [0, 8]]
    given = pd.DataFrame({"age": [7.0, 8.0], "city": ["Rome", "Oslo"]})
    predicted = np.asarray(pyfunc.load_model(str(folder)).predict(given))
    assert np.allclose(predicted, (torch.tensor(rows).float() @ weight.T + bias).numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="column 'city' has 'Lima', which is unknown"):
        pyfunc.load_model(str(folder)).predict(given.assign(city="Lima"))


PACKAGE = """
import torch
from pack.factor import FACTOR
class Net(torch.nn.Linear):
    def forward(self, inputs):
        return FACTOR * super().forward(inputs.flatten(1))
def model():
    return Net(64, 10)
"""


def test_models_of_one_process_have_each_its_own_modules(tmp_path) -> None:
    """Two networks of a package, in which a number was another one when the second was trained."""
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").touch()
    (tmp_path / "pack/net.py").write_text(PACKAGE)
    images = torch.randn(3, 1, 8, 8)
    for factor in (1, 100):
        (tmp_path / "pack/factor.py").write_text(f"FACTOR = {factor}\n")
        run = trained(name=f"by-{factor}", model=f"{tmp_path}/pack/net.py:model")
        folder = write_folder(run, run.round(2), str(tmp_path / f"out-{factor}"), pyfunc=True)
        weight, bias = (run.round(2).tensors[name] for name in ("weight", "bias"))
        predicted = torch.tensor(np.asarray(pyfunc.load_model(str(folder)).predict(images.numpy())))
        assert torch.allclose(predicted, factor * (images.flatten(1) @ weight.T + bias), atol=1e-4 * factor)


def test_each_accepted_night_replaces_a_folder_and_fills_one_of_its_date(tmp_path: Path) -> None:
    fields = {"accept": "accuracy >= 0.01", "export": [f"{tmp_path}/now", f"{tmp_path}/all/{{date}}"]}
    first = trained(name="first", **fields)
    day = dated(rw.TrainConfig(name="{date}")).name
    for folder in (tmp_path / "now", tmp_path / "all" / f"{day}"):
        assert torch.equal(exported(folder), first.round(2).tensors["1.weight"])
        assert "| gate | accuracy >= 0.01: " in (folder / "README.md").read_text()
    rejected = trained(name="second", seed=1, **fields | {"accept": "accuracy >= 1"})
    assert rejected.status == "rejected"
    assert torch.equal(exported(tmp_path / "now"), first.round(2).tensors["1.weight"])
    last = trained(name="third", seed=2, rounds=3, **{k: v for k, v in fields.items() if k == "export"})
    assert torch.equal(exported(tmp_path / "now"), last.round(3).tensors["1.weight"])


@pytest.mark.dear("MLflow and its registry, which take seconds to import and to begin")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's, of its own database
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_mlflow_gets_a_version_of_the_model_with_the_alias_that_the_run_took(tmp_path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # artifacts lie in its mlruns
    where = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    nightly = {"export": "mlflow", "promote": "champion", "start_from": "champion@-1"}
    trained(name="first", **nightly)
    later = trained(name="second", **nightly)
    client = mlflow.MlflowClient(where)
    taken = client.get_model_version_by_alias("roundweave", "champion")
    assert int(taken.version) == 2
    assert holder_of(tmp_path / "runs", "champion") == "second"
    told = client.get_run(taken.run_id).data
    assert (told.tags["chain"], told.params["local_steps"]) == (later.chain, "2")
    assert told.metrics["loss"] == later.round(2).score.loss
    assert torch.equal(exported(Path(taken.source)), later.round(2).tensors["1.weight"])
    assert "| parent | first@2 |" in Path(taken.source, "README.md").read_text()
    other = trained(name="other", **nightly | {"start_from": "first@-1"})  # it is compared with a former one
    assert holder_of(tmp_path / "runs", "champion") == "second"
    assert int(client.get_model_version_by_alias("roundweave", "champion").version) == 2
    newest = max(client.search_model_versions("name='roundweave'"), key=lambda each: int(each.version))
    assert client.get_run(newest.run_id).data.tags["chain"] == other.chain


def test_an_export_that_fails_leaves_a_complete_run_and_the_next_attempt_exports(tmp_path, capsys) -> None:
    blocked = tmp_path / "blocked"
    (tmp_path / "file").touch()
    fields = {"name": "first", "export": [f"{tmp_path}/file/out", f"{blocked}"]}
    with pytest.raises(PlaceError, match=r"^first is complete, but not exported to .*file/out \("):
        trained(**fields)
    stored = rw.open_run("first")
    assert (stored.status, stored.done) == ("complete", 2)
    assert torch.equal(exported(blocked), stored.round(2).tensors["1.weight"])
    code, _, err = run(capsys, "resume", "first", "--quiet")
    assert code == 1
    assert err.splitlines()[-1].startswith("error: first is complete, but not exported to ")
    (tmp_path / "file").unlink()
    assert run(capsys, "resume", "first", "--quiet")[0] == 0
    assert torch.equal(exported(tmp_path / "file/out"), stored.round(2).tensors["1.weight"])


KILLED = """
import os, signal
from roundweave.flows.plugins.exports import delivering
from tests.flows.nights import trained
delivering.deliver_champion = lambda *where: os.kill(os.getpid(), signal.SIGKILL)
trained(name="second", rounds=3, export="current", promote="champion")
"""


def test_what_a_killed_process_left_behind_goes_to_the_champion_the_next_night(tmp_path) -> None:
    """A process is killed after its run took the alias, before its network was written."""
    current = {"export": f"{tmp_path}/current", "promote": "champion"}
    trained(name="first", **current)
    env = WITHOUT_PREFECT | {"PYTHONPATH": str(HERE)}
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=env, check=False)
    second = rw.open_run("second")
    assert (killed.returncode, second.status) == (-signal.SIGKILL, "complete")
    assert torch.equal(exported(tmp_path / "current"), rw.open_run("first").round(2).tensors["1.weight"])
    trained(name="third", accept="loss < 0", **current)
    assert holder_of(tmp_path / "runs", "champion") == "second"
    assert torch.equal(exported(tmp_path / "current"), second.round(3).tensors["1.weight"])
    before = (tmp_path / "current").stat().st_ino
    trained(name="fourth", accept="loss < 0", **current)
    assert (tmp_path / "current").stat().st_ino == before, "what is of the champion is not written again"


def test_what_cannot_be_exported_is_refused_before_the_training(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others").mkdir()
    (tmp_path / "others/mine").touch()
    for export, says in {
        "none/model.pt": "there is no folder none; make it first",
        "others": "no export wrote",
    }.items():
        with pytest.raises(UsageError, match=says):
            trained(name="first", export=export)
    with pytest.raises(UsageError, match="others has files that no export wrote"):
        check(night(name="first", export="others"))  # as serving begins
    assert night(export="out/{date:%Y.%m.%d}/").export == ("out/{date:%Y.%m.%d}/",)
    monkeypatch.setattr("roundweave.flows.plugins.exports.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="mlflow-skinny is not installed; `pip install mlflow-skinny`"):
        trained(name="first", export="mlflow")
    assert not (tmp_path / "runs").exists()


def test_places_in_a_file_go_from_where_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/night.toml").write_text('export = "mlflow, ./mlflow, out.v1/, /tmp/x, {date}.pt"\n')
    config = rw.TrainConfig(**read_toml(Path("conf/night.toml")))
    assert config.export == ("mlflow", "conf/./mlflow", "conf/out.v1/", "/tmp/x", "conf/{date}.pt")
    absolute = from_anywhere(config)["export"]
    assert absolute[:4] == ["mlflow", f"{tmp_path}/conf/./mlflow", f"{tmp_path}/conf/out.v1/", "/tmp/x"]
    assert re.fullmatch(r"conf/\d{8}\.pt", dated(config).export[4])
