"""The command, run in the process of the tests."""

from __future__ import annotations

import sys

import pytest

from flows.command import app


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command in this process."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["roundweave", *arguments])
        app.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err
