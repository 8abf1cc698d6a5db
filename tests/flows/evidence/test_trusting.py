"""Code that a run from elsewhere holds is run only where it is trusted, whatever of the run is computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.config.recorded import resumed_config
from roundweave.storage.rounds.store import RoundStore
from tests.flows.command.in_process import run as command
from tests.rows import but_first

COMPUTED: dict[str, Callable[..., object]] = {
    "replay": lambda run, **trust: run.replay(**trust),
    "recombine": lambda run, **trust: run.recombine(**trust),
    "score": lambda run, **trust: run.score("last", **trust),
    "fork": lambda run, **trust: rw.fork(f"{run.path}@1", root=run.path.parent / "other", **trust),
    "resume": lambda run, trust=False: resumed_config(str(run.path), None, trust=trust, changes={}),
}
COMMANDS = {"replay": [], "recombine": ["--all"], "score": []}


@pytest.fixture
def theirs(stored, tmp_path: Path) -> rw.Run:
    """A run with code of its own that lies outside the root."""
    return rw.Run(stored("counting").path.rename(tmp_path / "theirs.zarr"), tmp_path / "runs")


@pytest.mark.parametrize("what", COMPUTED)
def test_code_from_outside_the_root_is_run_with_trust_alone(theirs, what: str) -> None:
    with pytest.raises(rw.UsageError, match=r"holds code .*trust"):
        COMPUTED[what](theirs)
    COMPUTED[what](theirs, trust=True)


@pytest.mark.parametrize("what", but_first(["score"], COMMANDS))
def test_so_say_the_commands(theirs, what: str, capsys) -> None:
    place = f"{theirs.path}@1" if what == "score" else str(theirs.path)
    line = [what, place, *COMMANDS[what], *([] if what == "score" else ["--executor", "inline"])]
    code, _, said = command(capsys, *line)
    assert (code, "holds code" in said and "use --trust to run it" in said) == (2, True)
    assert command(capsys, *line, "--trust")[0] == 0


def test_code_that_is_replaced_needs_no_trust(theirs) -> None:
    rw.fork(f"{theirs.path}@1", root=theirs.path.parent / "other", data="digits", model="mlp", algorithm="fed_avg")


def test_a_reduce_that_a_record_names_is_code_too(stored, tmp_path: Path) -> None:
    store = RoundStore(stored("plain").path)
    kept = {n: v for n, v in store.attributes.items() if n not in ("version", "digest", "schema", "coordinates")}
    kept["config"] = kept["config"] | {"recombined": {"reduce": f"{tmp_path}/evil.py:fn"}}
    (tmp_path / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'mark')!r}).touch()\n")
    RoundStore.create(tmp_path / "theirs" / "x.zarr", store.schema, 1, kept, store.tensors.read_state(0))
    with pytest.raises(rw.UsageError, match=r"holds code .*evil\.py:fn"):
        resumed_config(str(tmp_path / "theirs" / "x.zarr"), None, trust=False, changes={})
    assert not (tmp_path / "mark").exists()
