"""Runs in a bucket of a real server of S3: made, killed, gone on with, looked at, merged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roundweave import MergeConfig, list_runs, merge, open_run
from roundweave.storage.errors import RunBusy, WriterFenced
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.lease import fenced, hold_lease
from roundweave.storage.rounds.store import RoundStore
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from tests.flows.command.in_process import run as command
from tests.runs import RUNS
from tests.storage.checkpoints.reading import read_checkpoint
from tests.storage.places.s3_server import SECRET

FIELDS = {"partitions": 3, "local_steps": 2, "model": "linear", "algorithm": "scaffold", "rounds": 4}
FLAGS = [text for name, value in FIELDS.items() for text in (f"--{name.replace('_', '-')}", str(value))]
COMMAND = "import roundweave; roundweave.main()"


@pytest.fixture
def root(s3, monkeypatch, tmp_path) -> str:
    """The root of runs, in a bucket; what must be on this machine is in `runs` here."""
    root = f"{s3.bucket()}/our/runs"
    monkeypatch.setenv("ROUNDWEAVE_ROOT", root)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.mark.dear("a server of S3, and two runs")
def test_a_run_in_a_bucket_has_the_bits_of_one_on_a_disk(stored, train, root, tmp_path) -> None:
    wanted = stored("scaffold")
    run = train(**RUNS["scaffold"], name="bucket", root=root)
    assert run.digest == wanted.digest
    assert (run.address, run.name, run.status) == (f"{root}/bucket.zarr", "bucket", "complete")
    again = open_run("bucket")
    assert list(list_runs().index) == ["bucket"]
    histories = [each.history().drop(columns="seconds") for each in (again, wanted)]
    assert histories[0].equals(histories[1])
    assert (again["fc1.weight"].values == wanted["fc1.weight"].values).all()
    assert again.round(2).update(1).extras.keys() == {"control"}
    assert again.status == "complete"
    assert "bucket · complete · 3/3 rounds" in repr(again)
    assert not again.verify().findings
    assert list(tmp_path.glob("s3*")) == []


@pytest.mark.thorough
def test_workers_of_a_cluster_write_into_a_bucket(train, root) -> None:
    """A cluster of its own, whose workers have the bucket's keys in their environment."""
    wanted = train(**FIELDS, name="inline")
    with connect(None, 2) as client:
        run = train(GraphExecutor(client), 2, **FIELDS, name="graph", root=root)
    assert run.digest == wanted.digest
    assert run.committed == [0, 1, 2, 3, 4]


@pytest.mark.thorough
def test_the_command_and_a_kill(root, train, tmp_path, capsys) -> None:
    """All that users do, and the secret is nowhere: not in the bucket, on the disk, or in what is printed."""
    wanted = train(**FIELDS, name="wanted", root=tmp_path / "wanted")
    line = [sys.executable, "-c", COMMAND, "train", *FLAGS, "--name", "killed", "--executor", "inline"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with (tmp_path / "output.log").open("wb") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log, env=environment)
        place = place_of(f"{root}/killed.zarr")
        while not place.has("commits/1.json"):
            assert process.poll() is None, (tmp_path / "output.log").read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert open_run("killed").status == "interrupted"
    printed = [command(capsys, "resume", "killed", "--executor", "inline", "--json")]
    assert json.loads(printed[0][1].splitlines()[-1])["digest"] == wanted.digest
    printed += [command(capsys, *line) for line in (["show", "killed"], ["runs"], ["runs", root, "--json"])]
    from_round = ["--start-from", f"{root}/killed.zarr@2"]
    printed += [command(capsys, "train", *FLAGS, *from_round, "--name", "forked", "--executor", "inline")]
    assert [code for code, _, _ in printed] == [0] * len(printed), printed
    assert (open_run("forked")["1.weight"].sel(round=0) == open_run("killed")["1.weight"].sel(round=2)).all()
    told = "".join(out + err for _, out, err in printed) + (tmp_path / "output.log").read_text()
    kept = b"".join(bytes(place_of(root).read(key)) for key in place_of(root).sizes())
    files = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert SECRET not in told
    assert SECRET.encode() not in kept + files
    assert b"tester" not in kept


@pytest.mark.thorough
def test_networks_are_merged_from_a_bucket_into_one(root, train) -> None:
    for seed in (0, 1):
        train(partitions=1, local_epochs=1, model="mlp", model_options={"hidden": 8}, rounds=2, seed=seed,
              name=f"net{seed}", root=root)  # fmt: skip
    networks = (f"{root}/net0.zarr@-1", "net1@1")
    merged = merge(MergeConfig(networks=networks, executor="inline", name="merged", data="digits"))
    assert merged.run.address == f"{root}/merged.zarr"
    first = read_checkpoint(f"{root}/net0.zarr@2")
    assert (read_checkpoint("merged@0")["fc1.weight"] == first["fc1.weight"]).all()


@pytest.mark.thorough
def test_of_two_writers_one_is_refused_and_the_late_one_fenced(train, root) -> None:
    run = train(**FIELDS | {"rounds": 1}, name="busy", root=root)
    store = RoundStore(run.address)
    with hold_lease(store.place, "first") as lease, pytest.raises(RunBusy, match="is being written by process"):
        train(**FIELDS, name="busy", root=root)
    commit = store.describe(store.tensors.read_state(1), "late", 0)
    with pytest.raises(WriterFenced, match="was committed by another writer"):
        store.log.create(commit)
    late = fenced(store.place, lease.epoch - 1)
    for change in (late.create, late.write, lambda key, content: late.delete(key)):
        with pytest.raises(WriterFenced, match="was taken over by process"):
            change("partitions/1/c/0", b"{}")
    assert run.verify().findings == ()


@pytest.mark.thorough
def test_a_copy_in_a_bucket_is_verified_pruned_replayed_and_removed(train, root, tmp_path, capsys) -> None:
    disk = train(**FIELDS, name="disk", root=tmp_path / "disk")
    assert command(capsys, "cp", str(disk.path), root)[0] == 0
    run = open_run("disk")
    assert (run.address, run.chain, run.status) == (f"{root}/disk.zarr", disk.chain, "complete")
    assert run.verify() == disk.verify()
    replayed = run.replay("all", executor="inline")
    assert (replayed.replayed, replayed.identical) == ([1, 2, 3, 4], True)
    assert run.replay("all", executor="graph", workers=1).identical
    assert command(capsys, "prune", "disk", "--keep", "last:2")[0] == 0
    assert (run.refresh().kept, run.verify().findings) == ([0, 3, 4], ())
    assert run.replay(4, executor="inline").identical
    assert command(capsys, "cp", "disk", str(tmp_path / "back"))[0] == 0
    back = open_run(tmp_path / "back" / "disk.zarr")
    assert (back.chain, back.kept, back.verify().sound) == (disk.chain, [0, 3, 4], True)
    assert command(capsys, "rm", "disk", "--yes")[0] == 0
    assert not place_of(run.address).sizes()
