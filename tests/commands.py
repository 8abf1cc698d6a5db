"""A process on a machine that has imported Roundweave once, and forks for each command that is run there.

Imports take longer than a small run. A flow in it is a plain function, as where no Prefect server starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from tests.machines import Machine

PLAIN = """
import json, os, sys
from contextlib import nullcontext
from roundweave.flows.command import app
from roundweave.flows.serving import ahead

ahead.prefect_server = ahead.prefect_api = lambda root: nullcontext()
app.warm_up = lambda: None
"""

FORKS = f"""
{PLAIN}
from roundweave.flows.command.subcommands import evidence, looking, training, upkeep
from roundweave.flows.training import job
from roundweave.flows.training import flow, running
from roundweave.tasks.executors import graph

print("ready", flush=True)
for line in sys.stdin:
    words, log, environment = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(environment)
        sys.argv = ["roundweave", *words]
        app.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def plain_command(*words: object) -> list[str]:
    """The command line of `roundweave` whose flow is a plain function."""
    return [sys.executable, "-P", "-c", f"{PLAIN}\napp.main()", *map(str, words)]


class Commands:
    """Runs commands of `roundweave` on a machine, one after the other, until the context ends."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.log = machine.folder / "command.log"

    def __enter__(self) -> Commands:
        line = [*self.machine.enter, sys.executable, "-P", "-c", FORKS]
        pipe = subprocess.PIPE
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "1000"}
        self.process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self._answer() == "ready"
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()

    def run(self, *words: object, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        """The exit code of a command, and all that it printed."""
        request = [list(map(str, words)), str(self.log), dict(environment or {})]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self._answer()), self.log.read_text()

    def said(self, *words: object, environment: Mapping[str, str] | None = None) -> str:
        """All that a command printed; fails with it if the command does."""
        code, said = self.run(*words, environment=environment)
        assert code == 0, said
        return said

    def refused(self, *words: object, environment: Mapping[str, str] | None = None) -> str:
        """The one line of a command that ends with exit code 1, without the lines of its notices."""
        code, said = self.run(*words, environment=environment)
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        assert (code, len(lines), said.splitlines()[-1:]) == (1, 1, lines), said
        assert "Traceback" not in said, said
        return lines[0]

    def _answer(self) -> str:
        return self.process.stdout.readline().rstrip("\n")
