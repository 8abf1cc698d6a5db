"""Runs on SLURM: its real daemons on this machine, jobs that are cancelled, and the bits of any other run."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import roundweave as rw
from tests.storage.places.s3_server import free_port
from tests.tasks.executors.deeds import until

DAEMONS = ("munged", "slurmctld", "slurmd")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.getuid() != 0 or not all(map(shutil.which, DAEMONS)), reason="needs SLURM, and root"),
]

TEMPLATES = Path(__file__).parent / "slurm"


@contextmanager
def daemon(*line: object) -> Iterator[None]:
    """A process in the foreground, as long as it is needed."""
    process = subprocess.Popen(list(map(str, line)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cluster of one node, whose commands find it in the environment; it has `options.toml`."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool", "logs", "scratch"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    ports = [free_port(), free_port()]
    filled = {"host": socket.gethostname().partition(".")[0], "folder": folder, "ports": ports}
    for name in ("slurm.conf", "options.toml"):
        (folder / name).write_text((TEMPLATES / name).read_text().format(**filled))
    names = {"socket": "socket", "pid": "pid-file", "log": "log-file", "seed": "seed-file"}
    munge = [f"--{option}={folder}/munge.{name}" for name, option in names.items()]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        stack.enter_context(daemon("munged", "--force", "--foreground", f"--key-file={key}", *munge))
        until((folder / "munge.socket").exists)
        stack.enter_context(daemon("slurmctld", "-D", "-i"))
        stack.enter_context(daemon("slurmd", "-D"))
        until(lambda: "idle" in told("sinfo", "--noheader"))
        yield folder


def told(*line: str) -> str:
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout


def jobs() -> list[str]:
    """The jobs that run."""
    return told("squeue", "--noheader", "--states=RUNNING", "--format=%i").split()


@pytest.fixture
def configuration(slurm: Path, fields, do) -> dict[str, object]:
    """Of which each partition takes its time to be read, and each map."""
    do("time.sleep(1)", range(4), at="data", always=True)
    do("time.sleep(0.1)", range(4), always=True)
    return fields | {"rounds": 12}


def command(slurm: Path, fields: dict[str, object], name: str, *more: str) -> list[str]:
    line = [sys.executable, "-m", "roundweave.flows.command.app", "train", "--name", name]
    line += [f"--{key.replace('_', '-')}={value}" for key, value in fields.items()]
    return [*line, f"--scheduler=slurm:{slurm / 'options.toml'}", "--workers=2", *more]


@pytest.mark.parametrize("executor", ["graph", "ranks"])
@pytest.mark.parametrize("when", ["never", "before round 1", "in mid-run"])
def test_a_run_has_the_bits_of_any_other(train, slurm, configuration, executor: str, when: str) -> None:
    """Also where one of its two jobs is cancelled: another one is begun. None is left."""
    reference = train(**configuration, name="reference")
    line = command(slurm, configuration, "there", f"--executor={executor}")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        if when == "before round 1":
            until(lambda: len(jobs()) == 2)
        cancelling = threading.Thread(target=cancel_later, args=(when, reference.path.parent / "there.zarr"))
        cancelling.start()
        output, _ = process.communicate()
        cancelling.join()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    run = rw.open_run("there")
    assert run.done == 12
    assert run.digest == reference.digest
    if when == "in mid-run":
        assert re.search(r"worker tcp://\S+ is lost", output)
    until(lambda: not told("squeue", "--noheader"))


def cancel_later(when: str, store: Path) -> None:
    if when == "in mid-run":
        until((store / "commits" / "3.json").exists)
    if when != "never":
        subprocess.run(["scancel", jobs()[0]], check=True)


def test_what_slurm_refuses_is_one_line(slurm, configuration, tmp_path: Path) -> None:
    text = (slurm / "options.toml").read_text().replace('"trial"', '"nowhere"')
    (tmp_path / "options.toml").write_text(text)
    line = command(tmp_path, configuration, "there")
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line]
    assert error.startswith("error: dask_jobqueue.SLURMCluster does not start: ")
    assert "invalid partition specified: nowhere" in error
