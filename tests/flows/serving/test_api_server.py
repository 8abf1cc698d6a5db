"""A new root's database: a copy of one that is kept for each version of Prefect, wherever that can be used."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest

from roundweave.flows.serving import api_server
from roundweave.flows.serving.server import REPORTS_ALONE, SETTINGS, Server, start_server, stop_server, warm_up
from roundweave.storage.errors import ClusterError, UsageError
from tests.flows.nights import trained
from tests.patience import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def _one_server() -> None:
    """None: these tests have servers of their own, whose start, settings and end are their subject."""


def tables(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def change(database: Path, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


MIGRATED = ("CREATE TABLE alembic_version (version_num TEXT)", "INSERT INTO alembic_version VALUES ('1')")


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Homes of servers that share a cache, and those of them whose database was made from nothing."""

    def new() -> Path:
        """The database of a new home, once it is there."""
        database = tmp_path / f"home{len([*tmp_path.glob('home*')])}" / "prefect.db"
        database.parent.mkdir()

        def migrate() -> None:
            if not database.exists():
                change(database, *MIGRATED)
                homes.made.append(database)

        monkeypatch.setattr(api_server, "_migrate", migrate)
        api_server.place_database(database, homes.template)
        assert [*database.parent.iterdir()] == [database]
        return database

    homes = SimpleNamespace(new=new, made=[], template=tmp_path / "cache/prefect.db")
    return homes


def test_the_second_home_has_a_copy_of_the_first_ones_empty_database(homes) -> None:
    first = homes.new()
    change(homes.template, "CREATE TABLE from_the_cache (number)")
    assert tables(homes.new()) == tables(first) | {"from_the_cache"}
    assert homes.made == [first]
    assert list(homes.template.parent.iterdir()) == [homes.template]


def test_a_database_that_is_there_stays(homes) -> None:
    database = homes.new()
    change(database, "CREATE TABLE of_mine (number)")
    change(homes.template, "CREATE TABLE from_the_cache (number)")
    api_server.place_database(database, homes.template)
    assert "of_mine" in tables(database)
    assert "from_the_cache" not in tables(database)


def test_a_template_that_is_no_database_is_made_anew(homes) -> None:
    first = homes.new()
    homes.template.write_text("nothing")
    assert tables(homes.new()) == tables(homes.new()) == tables(first)
    assert len(homes.made) == 2


def test_a_cache_that_cannot_be_written_is_done_without_and_said(homes, capsys) -> None:
    homes.template.parent.write_text("no folder")
    assert tables(homes.new()) == tables(homes.new()) == {"alembic_version"}
    assert len(homes.made) == 2
    assert f"{homes.template} is no copy of" in capsys.readouterr().err


def made(server: Server, auth: tuple[str, ...] | None = None) -> int:
    """How a server answers to a new flow, by its own password or another."""
    auth = auth or tuple(server.password.split(":"))
    with httpx.Client(auth=auth, timeout=PATIENCE, trust_env=False) as client:
        return client.post(f"{server.url()}/flows/", json={"name": "flow"}).status_code


@pytest.mark.slow
def test_servers_that_start_at_once_make_one_sound_template(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    servers = [Server().settle(tmp_path / home) for home in ("one", "two", "two")]
    try:
        for server in servers:
            assert made(server) in (200, 201)
    finally:
        for server in servers:
            server.stop()
    (template,) = (tmp_path / "cache" / "roundweave").iterdir()
    assert "flow" in tables(template)


@pytest.mark.parametrize(("most", "left"), [(99, b""), (100, b"x" * 100)])
def test_a_new_server_empties_a_large_log(tmp_path, monkeypatch, most, left) -> None:
    monkeypatch.setattr(api_server, "LARGEST_LOG", most)
    monkeypatch.setattr(os, "dup2", lambda *files: None)
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * 100)
    api_server.log_to(log)
    assert log.read_bytes() == left


def test_a_server_that_was_begun_before_its_root_was_known_serves_its_first_root(monkeypatch, tmp_path) -> None:
    """However many commands of one process have begun one."""
    for name in [name for name in os.environ if name.startswith("PREFECT")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "none.toml"))
    monkeypatch.setattr("roundweave.flows.serving.server._servers", [])
    warm_up()
    warm_up()
    first = start_server(tmp_path)
    assert first is start_server(tmp_path)
    second = start_server(tmp_path / "other")
    assert (first.running, second.running) == (False, True)
    stop_server(tmp_path / "other")
    assert not second.running


def test_a_server_that_died_before_its_root_was_known_is_one_clear_error(tmp_path) -> None:
    server = Server()
    server.process.kill()
    server.process.wait()
    with pytest.raises(ClusterError, match="Prefect's server did not start"):
        server.settle(tmp_path / "home").url()
    server.stop()


def test_a_server_that_answered_too_late_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server().settle(tmp_path / "home")
    with monkeypatch.context() as patch, pytest.raises(ClusterError, match="Prefect's server did not start"):
        patch.setattr("roundweave.flows.serving.server.START_SECONDS", 0.001)  # it imports for a second at least
        server.url()
    assert httpx.get(f"{server.url()}/health", timeout=PATIENCE).json() is True
    server.stop()


COMPANY = {
    ".env": 'PREFECT_SERVER_DATABASE_CONNECTION_URL="sqlite+aiosqlite:///{}"',
    "prefect.toml": 'server.database.connection_url = "sqlite+aiosqlite:///{}"',
    "pyproject.toml": 'tool.prefect.server.database.connection_url = "sqlite+aiosqlite:///{}"',
}
"""Files of settings in which somebody names the database of another server."""


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of a training in a folder whose files, and with a variable that, name another database."""
    folder = tmp_path_factory.mktemp("settled")
    for file, line in COMPANY.items():
        (folder / file).write_text(line.format(folder / f"company{file}.db"))
    variables = {
        "prefect_server_database_connection_url": f"sqlite+aiosqlite:///{folder}/company-variable.db",
        "PREFECT_HOME": str(folder / "runs/.prefect"),
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5://127.0.0.1:9",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        trained(name="own", rounds=1, root=folder / "runs")
        server = start_server(folder / "runs")
        yield server
        stop_server(folder / "runs")


@pytest.mark.dear("a server of the process's own, as every user without a Prefect API has it")
def test_a_training_reports_to_its_own_server_whatever_settings_folder_and_variables_have(settled) -> None:
    """By no proxy, and into the server's own database."""
    with closing(sqlite3.connect(settled.home / "prefect.db")) as connection:
        assert connection.execute("SELECT name, state_type FROM flow_run").fetchall() == [("own", "COMPLETED")]
    assert list(settled.home.parents[1].glob("company*.db")) == []


def test_a_server_listens_to_this_machine_and_answers_this_process_alone(settled) -> None:
    port = int(settled.url().split(":")[2].removesuffix("/api"))
    connections = psutil.Process(settled.process.pid).net_connections("inet")
    listening = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening if address.port == port} == {"127.0.0.1"}
    assert made(settled, ("roundweave", "guess")) == 401


def test_the_servers_settings_are_settings_of_prefect(monkeypatch) -> None:
    from prefect.settings import Settings

    for name, value in (SETTINGS | REPORTS_ALONE).items():
        monkeypatch.setenv(name, value)
    off = ["register_blocks_on_start", "memoize_block_auto_registration", "database.migrate_on_start"]
    off += ["services.triggers.enabled", "ui.enabled", "analytics_enabled"]
    assert not any(attrgetter(*off)(Settings().server))


@pytest.mark.thorough
def test_a_server_ends_with_the_process_that_started_it(tmp_path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from roundweave.flows.serving.server import start_server
print(start_server(Path(sys.argv[1])).process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    line = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, env=environment, check=False)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(timeout=PATIENCE)


def test_a_server_that_is_stopped_does_not_keep_this_process_from_its_end(monkeypatch) -> None:
    monkeypatch.setattr("roundweave.flows.serving.server.STOP_SECONDS", 0.2)
    server = Server()
    os.kill(server.process.pid, signal.SIGSTOP)
    server.stop()
    assert server.process.returncode == -signal.SIGKILL


def test_the_users_own_api_is_respected(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert start_server(tmp_path) is None


@pytest.mark.parametrize("text", ["a = [", "profiles = 3", "active = [1]"])
def test_damaged_profiles_of_the_users_are_one_clear_error(monkeypatch, tmp_path: Path, text: str) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "profiles.toml"))
    (tmp_path / "profiles.toml").write_text(text)
    with pytest.raises(UsageError, match=r"profiles\.toml cannot be read \(.*\); repair it"):
        start_server(tmp_path)
