"""Runs the command in forks of one process, each with bounds of memory and time; tells what became of it.

Reads jobs as lines of JSON, ``{"cwd", "arguments"}``, and answers each with one.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.flows.command.in_process import WITHOUT_PREFECT

MEMORY = 3 << 30
"""Bytes of addresses that a command may take beyond those of the process that it is forked from."""

SECONDS = 60


class Commands:
    """The process that runs commands; each answer has code, out, err, traceback and bytes."""

    def __init__(self) -> None:
        line = [sys.executable, "-m", "tests.hostile.running"]
        root = Path(__file__).parents[2]
        environment = WITHOUT_PREFECT | {"PYTHONPATH": str(root), "PYTHONWARNINGS": "error::UserWarning"}
        self.process = subprocess.Popen(
            line, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, cwd: Path, *arguments: str) -> dict[str, Any]:
        """What became of a command in a folder; ``python:NAME`` is a question of `questions.py`."""
        self.process.stdin.write(json.dumps({"cwd": str(cwd), "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        self.process.communicate()


def main() -> None:
    """Answer jobs until there are none."""
    _warm_up()
    with _without_servers():
        for line in sys.stdin:
            answer = json.dumps(_forked(json.loads(line)))
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


def _warm_up() -> None:
    """Import what commands import, and start no thread, which no fork would have."""
    from importlib import import_module

    from roundweave.flows.command.app import COMMANDS

    for module, _ in COMMANDS.values():
        import_module(f"roundweave.flows.command.subcommands.{module}")
    for module in (
        *("matplotlib.figure", "matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg", "pandas"),
        *("xarray", "prefect.flows", "sklearn.datasets", "torch.utils.tensorboard", "torch._dynamo"),
        *(f"roundweave.flows.evidence.{name}" for name in ("replaying", "recombining")),
        *(f"roundweave.flows.merging.{name}" for name in ("flow", "running")),
        *(f"roundweave.flows.{name}" for name in ("training.flow", "exporting.report", "reporting.flow_runs")),
    ):
        with contextlib.suppress(ImportError):
            import_module(module)


@contextlib.contextmanager
def _without_servers() -> Iterator[None]:
    """Within, flows run without Prefect's server."""
    from roundweave.flows.command import app
    from roundweave.flows.serving import ahead
    from roundweave.tasks.executors.clusters import fork_server

    app.warm_up = lambda: None  # type: ignore[assignment]
    fork_server.begin = lambda: None  # type: ignore[assignment]
    ahead.prefect_server = lambda root: contextlib.nullcontext()
    ahead.prefect_api = contextlib.nullcontext  # type: ignore[assignment]
    yield


def _forked(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["cwd"])
    out, err, told = (folder / f".{name}" for name in ("out", "err", "told"))
    before = _resident()
    child = os.fork()
    if not child:
        _bounded(job, out, err, told)
    _, status, used = os.wait4(child, 0)
    answer = {
        "code": os.waitstatus_to_exitcode(status),
        "bytes": max(used.ru_maxrss * 1024 - before, 0),
        "out": out.read_bytes().decode("utf-8", "backslashreplace"),
        "err": err.read_bytes().decode("utf-8", "backslashreplace"),
        "traceback": told.read_text(errors="backslashreplace") if told.exists() else "",
    }
    for path in (out, err, told):
        path.unlink(missing_ok=True)
    return answer


def _bounded(job: dict[str, Any], out: Path, err: Path, told: Path) -> None:
    """In the fork: run the command and end."""
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    code = 99
    try:
        os.chdir(job["cwd"])
        _call(job["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 98
    except BaseException:  # noqa: BLE001 - which is what is looked for
        signal.alarm(0)
        told.write_text(traceback.format_exc()[-6000:], errors="backslashreplace")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class TooLong(BaseException):
    """The command took longer than it may."""


def _too_long(*_: Any) -> None:
    signal.signal(signal.SIGALRM, lambda *_: os._exit(97))  # where the first one is caught
    signal.alarm(5)
    raise TooLong


def _call(arguments: list[str]) -> None:
    if arguments[0].startswith("python:"):
        from tests.hostile.questions import ask

        ask(arguments[1], arguments[0].removeprefix("python:"))
        return
    from roundweave.flows.command import app

    sys.argv = ["roundweave", *arguments]
    app.main()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
