"""The command, run in the process of the tests; and the environment for one that has a process of its own."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from roundweave.flows.command import app

WITHOUT_PREFECT = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command in this process."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["roundweave", *arguments])
        app.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def said(capsys, *arguments: str) -> str:
    """What a command prints that ends well."""
    code, out, err = run(capsys, *arguments)
    assert code == 0, (out, err)
    return out


def told(capsys, *arguments: str) -> Any:
    """The JSON of a command that ends well."""
    return json.loads(said(capsys, *arguments, "--json").splitlines()[-1])


def refused(capsys, *arguments: str) -> tuple[int, str]:
    """Exit code and the one line of a command that prints nothing but its error."""
    code, out, err = run(capsys, *arguments)
    assert (out, err.count("\n"), err[:7]) == ("", 1, "error: "), (out, err)
    return code, err.removeprefix("error: ").rstrip("\n")
