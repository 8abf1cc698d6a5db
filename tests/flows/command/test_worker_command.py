"""`roundweave worker` and `roundweave certificates`: what is refused in a line, and what is said of new keys."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from distributed.cli.dask_scheduler import main as dask_scheduler

from tests.flows.command.in_process import refused, run, said

HEAD = "tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([HEAD, "--memory-limit", "lots"], "a worker cannot have 'lots' of memory; give a size such as 8GB"),
        *(
            ([HEAD, "--memory-limit", limit], f"cannot have '{limit}' of memory")
            for limit in ("-1", "nan", "1e999", "", "100MB")
        ),
        ([HEAD, "--site", "a b"], "'a b' is no name of a site; give letters, digits, '_' and '-'"),
        ([HEAD, "--site", ""], "'' is no name of a site"),
        ([HEAD, "--site=-x"], "'-x' is no name of a site"),  # nor of one that --sites takes
        (["127.0.0.1:8786"], "'127.0.0.1:8786' is no address of a scheduler; give one such as tcp://head:8786"),
        (["tcp://head"], "'tcp://head' is no address of a scheduler"),
        (["tls://head:1"], "tls://head:1 talks by TLS; give --certificates FOLDER"),
        ([HEAD, "--certificates", "{folder}"], f"{HEAD} does not talk by TLS"),
        (["tls://head:1", "--certificates", "nowhere"], "the certificates of nowhere cannot be read"),
        ([], "Missing argument"),
    ],
)
def test_a_worker_that_cannot_be_is_one_clear_line(capsys, tmp_path: Path, arguments, says) -> None:
    said(capsys, "certificates", str(tmp_path / "keys"), "head")
    folder = str(tmp_path / "keys" / "head")
    code, line = refused(capsys, "worker", *(word.replace("{folder}", folder) for word in arguments))
    assert code == 2
    assert says in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scheduler", "tls://127.0.0.1:1"], "tls://127.0.0.1:1 talks by TLS; give --certificates FOLDER"),
        (["--scheduler", "tls://127.0.0.1:1", "--certificates", "nowhere"], "the certificates of nowhere cannot"),
        (["--certificates", "nowhere"], "--certificates need a cluster that runs; give its --scheduler"),
    ],
)
@pytest.mark.usefixtures("without_prefect")
def test_a_run_without_the_certificates_of_its_cluster_is_one_clear_line(capsys, arguments, says: str) -> None:
    code, line = refused(capsys, "train", *arguments)
    assert code == 2
    assert says in line


def test_the_lines_about_new_certificates_can_be_run(capsys, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "certificates", str(tmp_path / "keys"), "head", "berlin")
    wrote, (scheduler, joining) = out.splitlines()[:2], out.splitlines()[2:]
    assert (code, wrote) == (0, [f"wrote {tmp_path / 'keys' / name}" for name in ("head", "berlin")])
    variable, words = scheduler.removeprefix("next: ").split(" dask scheduler ")
    assert variable == "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES='[]'"
    words = shlex.split(words)
    files = dask_scheduler.make_context("scheduler", words).params
    assert (files["dashboard"], files["protocol"]) == (False, "tls")
    assert {Path(files[name]).parent for name in ("tls_ca_file", "tls_cert", "tls_key")} == {
        tmp_path / "keys/head"
    }
    assert joining == f"then: roundweave worker tls://HOST:8786 --certificates {tmp_path / 'keys' / 'berlin'}"
    code, line = refused(capsys, "certificates", str(tmp_path / "keys"), "berlin")
    assert (code, line.split(";")[0]) == (2, f"{tmp_path / 'keys' / 'berlin'} exists already")
