"""The facade: every name is there, typed, found by completion, and loaded when it is first used."""

from __future__ import annotations

import doctest
import functools
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import roundweave as rw
from tests.runs import train_once

ROOT = Path(rw.__file__).parents[1]
HEAVY = {"torch", "numpy", "prefect", "distributed", "zarr", "pandas", "pydantic"}

OWN = """
import roundweave as rw

run: rw.Run = rw.open_run("first")
reduce: rw.Reduce = rw.TrimmedMean(1)
config: rw.TrainConfig = rw.fork("first@1") or rw.TrainConfig(data="digits", rounds=3, lr=0.1)
reveal_type(rw.TrainConfig(patience=3).patience)
done: int = run.done
reveal_type(rw.Mean())
"""


@pytest.mark.parametrize("name", dir(rw))
def test_every_name_is_there(name: str) -> None:
    assert getattr(rw, name).__name__ == name


def test_a_name_that_is_not_there_is_said_with_those_that_are_and_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"has no 'trian'; it has .*train.*; did you mean train\?$"):
        rw.trian  # noqa: B018


def test_an_interrupt_waits_until_an_import_is_over(monkeypatch) -> None:
    """Numpy and torch, of which a part is imported, cannot be imported again in the same process."""
    done = list[str]()
    monkeypatch.setattr(rw, "_attribute", lambda name: (signal.raise_signal(signal.SIGINT), done.append(name)))
    with pytest.raises(KeyboardInterrupt):
        rw.__getattr__("train")
    assert (done, signal.getsignal(signal.SIGINT)) == (["train"], signal.default_int_handler)


def test_a_configuration_that_cannot_be_is_one_line_that_names_the_nearest() -> None:
    says = r"rounds = 0: .* greater than or equal to 1; unknown field 'partitons'; did you mean partitions\?$"
    with pytest.raises(rw.UsageError, match=says):
        rw.TrainConfig(partitons=3, rounds=0)
    with pytest.raises(rw.UsageError, match="unknown field 'pairs'"):
        rw.MergeConfig(networks=("a", "b"), pairs=2)


# The docstrings of the facade's names have examples, which run as they stand.


def examples_of(name: str) -> list[str]:
    """The places with examples that a name's docstring, and those of a stored run's methods, have."""
    value = getattr(rw, name)
    methods = inspect.getmembers(value, callable) if name in ("Run", "Round") else []
    return [name] + [f"{name}.{key}" for key, method in methods if "Example:" in (inspect.getdoc(method) or "")]


EXAMPLES = [place for name in dir(rw) for place in examples_of(name) if place != "plan"]
EXAMPLES += [pytest.param("plan", marks=pytest.mark.thorough)]  # a race takes some seconds
ALGORITHMS = {"Run.carried": "scaffold", "Round.match": "matched"}
"""That of the run in an example which asks for what only such runs have."""


@pytest.fixture(scope="module")
def examples_root(_stored_once: Path, tmp_path_factory: pytest.TempPathFactory, without_prefect) -> Path:
    """The root of the runs that examples name: first, second, and one for each of `ALGORITHMS`."""
    root = tmp_path_factory.mktemp("examples")
    for name in ("first", "second", *ALGORITHMS.values()):
        kind = "plain" if name in ("first", "second") else name
        shutil.copytree(train_once(_stored_once, kind), root / f"runs/{name}.zarr")
    return root


@pytest.mark.parametrize("place", EXAMPLES)
def test_every_name_has_an_example_that_runs(examples_root: Path, monkeypatch, place: str) -> None:
    monkeypatch.chdir(examples_root)
    monkeypatch.setenv("ROUNDWEAVE_ROOT", "runs")
    documented = functools.reduce(getattr, place.split("."), rw)
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(documented) or "")
    assert examples, f"{place} has no example"
    run = rw.open_run(ALGORITHMS.get(place, "first"))
    known = vars(sys.modules[documented.__module__]) | {"rw": rw, "torch": torch, "run": run}
    known["inputs"] = torch.zeros(2, 1, 8, 8)
    for example in examples:
        if "my_network" in example.source:
            known["my_network"] = run.network()
        exec(example.source, known)


@pytest.mark.parametrize("name", [name for name in dir(rw) if inspect.isfunction(getattr(rw, name))])
def test_every_function_says_what_it_takes_and_returns(name: str) -> None:
    function = getattr(rw, name)
    text = inspect.getdoc(function) or ""
    assert "Returns:" in text
    for parameter in inspect.signature(function).parameters:
        assert f"    {parameter}: " in text, parameter


IMPORTS = {
    "roundweave; from roundweave import main; assert 'train' in dir(roundweave)": HEAVY,
    "roundweave.flows.command.app": {"torch", "prefect", "distributed", "zarr", "pandas"},
    "roundweave.tasks.data.splits.deals": {"torch"},
    "roundweave.tasks.data.sources.table": {"torch", "pandas", "pyarrow"},
    "roundweave.tasks.matching": {"torch"},
}


@pytest.mark.parametrize("name", IMPORTS)
def test_importing_it_imports_nothing_heavy(name: str) -> None:
    script = f"import sys, {name}\nassert not {IMPORTS[name]} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


UNUSED = ("matching", "process_group")
AT_THE_FIRST_MAP = f"""
import sys, roundweave
from roundweave.tasks.rounds.persistence import mapping

def first_map(*given):
    unused = {UNUSED!r} + ("rounds.evidence", "executors.clusters", "merging")
    ours = ["roundweave.tasks." + each for each in unused]
    parts = ("race.choosing", "tensor_parallel.mapper", "stacked.replicas", "device.on_device", "compressed.comp")
    ours += ["roundweave.flows.plugins." + each for each in (*parts, "parameter_server.server")]
    ours += ["roundweave.flows.merging", "roundweave.flows.evidence"]
    found = [m for m in sys.modules if m in ("pandas", "matplotlib", "distributed") or m.startswith(tuple(ours))]
    plugins = "roundweave.flows.plugins"  # each has a module with its options, which is imported always
    used = [m for m in sys.modules if m.startswith("roundweave.") and m.rpartition(".")[0] != plugins]
    print(found, len(used))
    raise SystemExit

mapping.map_groups = first_map
roundweave.main()
"""


@pytest.mark.dear("a process that imports all that a plain run needs")
def test_a_plain_run_imports_nothing_that_it_does_not_use_before_its_first_map(tmp_path: Path) -> None:
    words = ["train", "--executor=inline", "--rounds=1", f"--root={tmp_path}"]
    line, nowhere = [sys.executable, "-c", AT_THE_FIRST_MAP, *words], {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    done = subprocess.run(line, capture_output=True, check=False, text=True, env=os.environ | nowhere)
    found, _, count = done.stdout.rpartition(" ")
    assert found == "[]", done.stdout + done.stderr
    assert int(count) <= 170


@pytest.mark.thorough
def test_types_are_known_to_mypy(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    line = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", tmp_path / "own.py"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, check=False, text=True)
    assert 'Revealed type is "roundweave.tasks.algorithms.reduces.mean.Mean"' in done.stdout
    assert 'Revealed type is "int | None"' in done.stdout
    assert "error" not in done.stdout, done.stdout


@pytest.mark.thorough
def test_importing_the_flows_makes_no_files(tmp_path: Path, monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PREFECT", "ROUNDWEAVE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    script = "from roundweave.flows import train_flow, merge_flow\nprint(train_flow.name, merge_flow.name)"
    line = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, check=True, text=True)
    assert done.stdout == "roundweave-train roundweave-merge\n"
    assert not [*tmp_path.rglob("*")]


def test_the_installed_command_begins_with_the_facade() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"roundweave": "roundweave:main"}
