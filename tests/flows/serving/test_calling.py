"""The project's flows called by a script that has neither a Prefect API nor a root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import roundweave as rw
from roundweave.flows import train_flow

if __name__ == "__main__":
    config = rw.TrainConfig(executor="inline", rounds=1, name="first")
    print(train_flow.with_options(retries=1)(config).status)
"""


@pytest.mark.thorough
def test_a_flow_begins_in_a_folder_without_runs(tmp_path: Path) -> None:
    (tmp_path / "night.py").write_text(SCRIPT, encoding="utf-8")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "ROUNDWEAVE"))}
    given = {"cwd": tmp_path, "env": {**plain, "HOME": str(tmp_path)}}
    done = subprocess.run([sys.executable, "night.py"], check=False, capture_output=True, text=True, **given)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["complete"]), done.stderr
    assert (tmp_path / "runs/.prefect/prefect.db").exists()
