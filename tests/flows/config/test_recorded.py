"""What the record of a run allows: a store from elsewhere is hostile until it is trusted."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from roundweave import MergeConfig, Run, open_run
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.config.train import Execution
from roundweave.flows.merging.preparing import plan_merge
from roundweave.flows.serving.server import server_home
from roundweave.storage.errors import NotARun, UsageError
from roundweave.storage.rounds.store import RoundStore
from roundweave.tasks.executors.clusters.connecting import connect
from tests.flows.command.in_process import refused
from tests.flows.command.in_process import run as command
from tests.flows.prefect_server import ended, until
from tests.training import trained

Store = Callable[..., Run]
KEPT = ("version", "digest", "schema", "coordinates")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RoundStore:
    """A run of one round."""
    return RoundStore(trained(tmp_path_factory.mktemp("plain"), rounds=1, model="linear", partitions=2).path)


@pytest.fixture
def store_at(plain: RoundStore) -> Store:
    """Make a store at a path whose record says what is given, however wrong, and otherwise what a run's does."""

    def make(path: Path, **recorded: object) -> Run:
        attributes = {name: value for name, value in plain.attributes.items() if name not in KEPT}
        config = attributes["config"] | {"rounds": 2, "name": None} | recorded
        RoundStore.create(path, plain.schema, 2, attributes | {"config": config}, plain.tensors.read_state(0))
        return Run(path)

    return make


@pytest.fixture
def theirs(tmp_path: Path, store_at: Store) -> Store:
    """A store outside the root."""
    return lambda **recorded: store_at(tmp_path / "theirs" / "foreign.zarr", **recorded)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that an attacker's code writes."""
    return tmp_path / "mark"


@pytest.fixture
def script(tmp_path: Path, mark: Path) -> str:
    """A file that writes the mark when it is run."""
    path = tmp_path / "x.py"
    path.write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef fn(*a, **k): ...\n")
    return str(path)


@pytest.fixture
def attacker(tmp_path: Path, mark: Path) -> Iterator[str]:
    """The address of a scheduler that answers with a pickle which writes the mark."""
    address = tmp_path / "address"
    line = [sys.executable, Path(__file__).with_name("attacker.py"), address, mark]
    with ended(line, dict(os.environ), tmp_path / "attacker.log"):
        until(address.exists, tmp_path / "attacker.log")
        yield address.read_text()


def test_a_scheduler_that_a_foreign_store_names_is_not_connected_to(theirs, attacker, mark: Path, capsys) -> None:
    run = theirs(scheduler=attacker, workers=1)
    assert command(capsys, "resume", str(run.path), "--workers", "1", "--trust")[0] == 0
    assert not mark.exists()
    assert run.refresh().done == 2
    with connect(attacker, 1):
        assert mark.exists(), "it would have been seen otherwise"


def test_nothing_of_execution_is_taken_from_a_foreign_store(theirs: Store, tmp_path: Path) -> None:
    told = {"scheduler": "tcp://evil:1", "certificates": str(tmp_path / "mine"), "root": str(tmp_path / "theirs")}
    told |= {"executor": "inline", "workers": 7, "window": 3, "evaluate_every": 2, "patience": 4, "fsync": True}
    config = resumed_config(str(theirs(**told).path), None, trust=True, changes={})
    ours = Execution(root=config.root, name="foreign", rounds=2)
    assert {name: getattr(config, name) for name in Execution.model_fields} == dict(ours)
    assert config.root == str(tmp_path / "runs")
    # Prefect's profiles may name a file of logging settings, which may name any function to call.
    assert server_home(config.root) == tmp_path / "runs/.prefect"


def test_the_execution_of_an_own_run_is_taken(store_at: Store, tmp_path: Path) -> None:
    run = store_at(tmp_path / "runs" / "mine.zarr", workers=7, evaluate_every=2, executor="inline")
    config = resumed_config("mine", None, trust=False, changes={"workers": 3})
    assert (config.workers, config.evaluate_every, config.executor) == (3, 2, "inline")
    assert config.address == str(run.path.resolve())


def pickled(mark: Path) -> dict[str, str]:
    content = base64.b64encode(cloudpickle.dumps(mark.touch)).decode()
    return {"reference": "f", "name": "f", "source": "", "pickled": content}


def recorded_code(script: str, mark: Path) -> dict[str, dict[str, object]]:
    """Records that name code in every field and spelling."""
    reference = f"{script}:fn"
    kept = {"reference": reference, "name": "fn", "source": Path(script).read_text(), "path": script}
    fields: dict[str, dict[str, object]] = {
        f"{field} {prefix}": {field: f"{prefix}{reference}"}
        for field in ("data", "model", "loss")
        for prefix in ("", "mnist:", "mlp:", "mse:")
        if (field, prefix) != ("data", "mnist:")  # that is a folder of that name, and no code
    }
    return fields | {
        "model by module": {"model": "x:fn"},
        "model by module with a prefix": {"model": "csv:x:fn"},
        "model kept": {"model": kept},
        "model pickled": {"model": pickled(mark)},
        "scores": {"scores": ["accuracy", reference]},
        "algorithm": {"algorithm": {"name": reference}},
        "algorithm with a prefix": {"algorithm": {"name": f"fed_avg:{reference}"}},
        "algorithm kept": {"algorithm": {"name": kept}},
    }


CASES = sorted(recorded_code(__file__, Path()))
FIRST = ("model kept", "model pickled", "algorithm", "scores", "loss ", "input")
MERGED = [case for case in CASES if case.split()[0] in ("data", "model", "loss")] + ["input"]


def first(cases: list[str]) -> list[Any]:
    """As parameters, of which those of each way to run code are in the first suite."""
    return [pytest.param(case, marks=[pytest.mark.thorough] * (case not in FIRST)) for case in cases]


@pytest.mark.parametrize("case", first(CASES))
def test_code_of_a_foreign_store_is_not_run_without_trust(theirs, script, mark, capsys, monkeypatch, case) -> None:
    monkeypatch.syspath_prepend(Path(script).parent)
    run = theirs(**recorded_code(script, mark)[case])
    code, line = refused(capsys, "resume", str(run.path), "--executor", "inline")
    assert code == 2
    assert line.startswith(f"{run.path} is outside")
    assert "holds code" in line
    assert not mark.exists()


@pytest.mark.parametrize("case", ["model kept", "model mnist:", "model "])
def test_code_of_a_foreign_store_is_run_with_trust(theirs: Store, script, mark: Path, capsys, case: str) -> None:
    run = theirs(**recorded_code(script, mark)[case])
    command(capsys, "resume", str(run.path), "--executor", "inline", "--trust")
    # `mnist:/x.py` is no file, so not even then can that be run.
    assert mark.exists() == (case != "model mnist:")


@pytest.mark.parametrize("case", first(MERGED))
@pytest.mark.parametrize("foremost", [True, False])
def test_a_merge_does_not_run_the_code_of_a_foreign_store(
    theirs: Store, store_at: Store, script: str, mark: Path, tmp_path: Path, monkeypatch, case: str, foremost: bool
) -> None:
    monkeypatch.syspath_prepend(Path(script).parent)
    records = recorded_code(script, mark) | {"input": {"data": None, "input": f"{script}:fn"}}
    foreign = f"{theirs(**records[case]).path}@0"
    mine = f"{store_at(tmp_path / 'runs' / 'mine.zarr').path}@0"
    networks = (foreign, mine) if foremost else (mine, foreign)
    config = MergeConfig(networks=networks, executor="inline")
    if foremost or case.startswith(
        ("data", "model")
    ):  # each network's data are its own run's, and so is its model
        with pytest.raises(UsageError, match=r"is outside .* and holds code"):
            plan_merge(config)
    else:  # what else is left open is taken from the first stored round
        plan_merge(config)
    assert not mark.exists()


def test_what_the_user_gives_is_not_the_stores(theirs: Store, script: str, mark: Path) -> None:
    foreign = f"{theirs(model=f'{script}:fn').path}@0"
    plan_merge(MergeConfig(networks=(foreign, foreign), model="linear", executor="inline"))
    assert not mark.exists()


@pytest.mark.parametrize("case", first(CASES))
def test_looking_runs_nothing(theirs: Store, script: str, mark: Path, capsys, monkeypatch, case: str) -> None:
    monkeypatch.syspath_prepend(Path(script).parent)
    run = theirs(**recorded_code(script, mark)[case])
    repr(run), run.history(), run.round(0).tensors, run[run.tensors[0]].values
    for line in (["show", str(run.path)], ["runs", str(run.path.parent), "--json"]):
        assert command(capsys, *line)[0] == 0
    assert not mark.exists()


@pytest.mark.parametrize("recorded", [{"algorithm": "fed_avg"}, {"algorithm": {}}, {"algorithm": None}])
def test_a_record_that_roundweave_never_wrote_is_no_run(theirs: Store, recorded: dict[str, object]) -> None:
    with pytest.raises(NotARun, match="its record is not that of a run"):
        resumed_config(str(theirs(**recorded).path), None, trust=True, changes={})


def test_a_symlinked_run_goes_on_in_that_very_run(store_at: Store, tmp_path: Path, capsys) -> None:
    run = store_at(tmp_path / "disk" / "real.zarr")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link.zarr").symlink_to(run.path)
    before = sorted(tmp_path.rglob("*.zarr"))
    assert command(capsys, "resume", "link", "--executor", "inline")[0] == 0
    assert run.refresh().done == 2
    assert open_run("link").done == 2
    assert sorted(tmp_path.rglob("*.zarr")) == before


@pytest.mark.parametrize("folder", ["runs", pytest.param("theirs", marks=pytest.mark.thorough)])
def test_a_folder_without_suffix_is_found_and_goes_on(store_at: Store, tmp_path: Path, folder, capsys) -> None:
    run = store_at(tmp_path / folder / "bare")
    assert command(capsys, "resume", "bare" if folder == "runs" else str(run.path), "--executor", "inline")[0] == 0
    assert run.refresh().done == 2
    assert (run.name, run.path.name) == ("bare", "bare")
    assert not list(tmp_path.rglob("bare.zarr"))
