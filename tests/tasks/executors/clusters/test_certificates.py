"""Certificates of an authority of one's own: who gets in by them, and what is refused in a line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import dask
import httpx
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from roundweave.flows.stored import open_run
from roundweave.storage.errors import ClusterError, UsageError
from roundweave.tasks.executors.clusters import certificates
from roundweave.tasks.executors.clusters.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    CERTIFICATE,
    KEY,
    security_for,
    write_certificates,
)
from roundweave.tasks.executors.clusters.connecting import connect
from tests.flows.command.in_process import run as command
from tests.joined import Start, processes, scheduler, worker
from tests.storage.places.s3_server import free_port

TLS = "tls://127.0.0.1:1"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an authority with three partners; the certificate of ``late`` has expired."""
    folder = tmp_path_factory.mktemp("own")
    write_certificates(folder, ["head", "berlin"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "DAYS", -0.1)
        write_certificates(folder, ["late"])
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a partner of another authority."""
    [folder] = write_certificates(tmp_path_factory.mktemp("foreign"), ["stranger"])
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, own: Path) -> Iterator[str]:
    """The address of a scheduler that talks by TLS."""
    port = free_port()
    with processes(tmp_path_factory.mktemp("head")) as start:
        scheduler(start, port, own / "head")
        yield f"tls://127.0.0.1:{port}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with processes(tmp_path) as start:
        yield start


def test_each_partner_has_a_key_of_its_own_that_its_authority_vouches_for(own: Path, foreign: Path) -> None:
    def certificate(file: Path) -> x509.Certificate:
        return x509.load_pem_x509_certificate(file.read_bytes())

    signed = [certificate(own / name / CERTIFICATE) for name in ("head", "berlin", "late")]
    for each in signed:
        each.verify_directly_issued_by(certificate(own / AUTHORITY))
    assert len({(own / name / KEY).read_bytes() for name in ("head", "berlin", "late")}) == 3
    with pytest.raises(InvalidSignature):
        signed[0].verify_directly_issued_by(certificate(foreign / AUTHORITY))


def test_keys_are_for_their_owners_eyes_and_that_of_the_authority_goes_to_nobody(own: Path) -> None:
    keys = [own / AUTHORITY_KEY, own / "head" / KEY]
    assert [key.stat().st_mode & 0o777 for key in keys] == [0o600, 0o600]
    assert {file.name for file in (own / "head").iterdir()} == {AUTHORITY, CERTIFICATE, KEY}


@pytest.mark.parametrize("name", ["a b", "", "../x", ".x", "a/b", "é", "x" * 64])
def test_a_name_that_is_none_leaves_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a partner"):
        write_certificates(tmp_path / "new", ["sound", name])
    assert not (tmp_path / "new").exists()


def test_no_partner_and_no_authority_is_written_over(own: Path) -> None:
    files = {file: file.read_bytes() for file in own.rglob("*.pem")}
    with pytest.raises(UsageError, match="berlin exists already"):
        write_certificates(own, ["paris", "berlin"])
    assert {file: file.read_bytes() for file in own.rglob("*.pem")} == files


def test_an_authority_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    for each in ("a", "b"):
        write_certificates(tmp_path / each, ["x"])
    (tmp_path / "a" / AUTHORITY).write_bytes((tmp_path / "b" / AUTHORITY).read_bytes())
    with pytest.raises(UsageError, match=rf"{AUTHORITY_KEY} is not the key of .*a/{AUTHORITY}; give a new folder"):
        write_certificates(tmp_path / "a", ["y"])
    key = serialization.load_pem_private_key((tmp_path / "b" / AUTHORITY_KEY).read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted = key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret"))
    for content in (b"nonsense", encrypted):
        (tmp_path / "b" / AUTHORITY_KEY).write_bytes(content)
        with pytest.raises(UsageError, match="has no readable authority"):
            write_certificates(tmp_path / "b", ["y"])


def test_certificates_that_cannot_be_talked_with_are_refused_before_it_is_tried(own: Path, tmp_path: Path) -> None:
    shutil.copytree(own / "head", tmp_path / "broken")
    shutil.copy(own / "berlin" / KEY, tmp_path / "broken" / KEY)
    says = r"broken cannot be read \(SSLError: .*KEY_VALUES_MISMATCH.*; give a folder with authority"
    with pytest.raises(UsageError, match=says):
        security_for(TLS, tmp_path / "broken", "client")
    says = r"the certificate of .*late was valid until 20\d\d-\d\d-\d\d; have another one made"
    with pytest.raises(UsageError, match=says):
        security_for(TLS, own / "late", "client")


def test_the_certificates_of_dasks_own_configuration_do_without_a_folder(own: Path) -> None:
    files = {"ca-file": AUTHORITY, "client.cert": CERTIFICATE, "client.key": KEY}
    settings = {f"distributed.comm.tls.{what}": str(own / "head" / name) for what, name in files.items()}
    with dask.config.set(settings):
        assert security_for(TLS, None, "client").get_connection_args("client")["ssl_context"]
        with pytest.raises(UsageError, match="talks by TLS"):
            security_for(TLS, None, "worker")
    wrong = dask.config.set(settings | {"distributed.comm.tls.client.key": "nowhere.pem"})
    refused = pytest.raises(UsageError, match="the certificates of the configuration of Dask cannot be read")
    with wrong, refused:
        security_for(TLS, None, "client")


def test_strangers_are_not_let_in_and_each_is_told_why_in_a_line(head: str, foreign: Path) -> None:
    plain = head.replace("tls://", "tcp://")
    for address, folder, why in (
        (head, foreign, "SSLCertVerificationError: .*certificate verify failed"),
        (plain, None, r"\w+Error: "),
    ):
        refused = pytest.raises(ClusterError, match=rf"no Dask scheduler answers at {address} .*\({why}")
        with refused, connect(address, 1, certificates=folder):
            pass


@pytest.mark.parametrize("routes", [None, "[]"])
def test_pages_that_anybody_may_read_beside_tls_are_told_of(own: Path, start: Start, monkeypatch, caplog, routes):
    if routes:
        monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES", routes)
    scheduler(start, port := free_port(), own / "head")
    with connect(f"tls://127.0.0.1:{port}", 1, certificates=own / "head") as client:
        shown = client.scheduler_info()["services"]["dashboard"]
    assert httpx.get(f"http://127.0.0.1:{shown}/json/identity.json").status_code == (404 if routes else 200)
    assert (f"port {shown} of the scheduler tells anybody of machines" in caplog.text) == (routes is None)


@pytest.mark.thorough
def test_a_worker_of_strangers_is_told_why_it_is_not_let_in(head: str, foreign: Path, start: Start) -> None:
    stranger = worker(start, head, "--certificates", str(foreign))
    stranger.says(f"{head} cannot be joined (SSLCertVerificationError: ")
    assert (stranger.ended(), len(stranger.lines)) == (0, 1)


@pytest.mark.usefixtures("without_prefect")
@pytest.mark.thorough
def test_digits_by_tls_have_the_bits_of_one_process(head: str, own: Path, start: Start, capsys) -> None:
    joined = worker(start, head, "--certificates", str(own / "berlin"), "--site", "berlin")
    joined.says("joined tls://")
    encrypted = ["--scheduler", head, "--certificates", str(own / "head")]
    for name, options in (("there", encrypted), ("here", ["--executor", "inline"])):
        code, _, err = command(capsys, "train", "--rounds", "2", "--local-steps", "2", "--name", name, *options)
        assert code == 0, err
    assert open_run("there").digest == open_run("here").digest
    assert command(capsys, "replay", "there", "--all", "--executor", "graph", *encrypted)[0] == 0
    assert command(capsys, "resume", "there", "--rounds", "3")[0] == 0, "the record has its own execution"
    joined.says("round 3, block 0: done in")
