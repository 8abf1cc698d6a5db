"""The command, run in the process of the tests."""

from __future__ import annotations

import sys

import pytest

from roundweave.flows.command import app


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command in this process."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["roundweave", *arguments])
        app.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def refused(capsys, *arguments: str) -> tuple[int, str]:
    """Exit code and the one line of a command that prints nothing but its error."""
    code, out, err = run(capsys, *arguments)
    assert (out, err.count("\n"), err[:7]) == ("", 1, "error: "), (out, err)
    return code, err.removeprefix("error: ").rstrip("\n")
