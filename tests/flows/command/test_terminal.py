"""What a terminal shows of the command while Prefect and a cluster are at work: a line for what goes wrong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.flows.command.in_process import refused
from tests.flows.prefect_server import command_line

pytestmark = [pytest.mark.prefect, pytest.mark.thorough]

DEADLY_ONCE = """
import os, signal
from pathlib import Path
from torch.nn.functional import cross_entropy
def loss(outputs, targets):
    mark = Path(__file__).with_name("once")
    if len(outputs) > 2 and outputs.requires_grad and not mark.exists():
        mark.touch()
        {how}
    return cross_entropy(outputs, targets)
"""


def test_a_lost_worker_is_one_line_on_the_terminal(own) -> None:
    path = own(DEADLY_ONCE.format(how="os.kill(os.getpid(), signal.SIGKILL)"))
    options = {"loss": f"{path}:loss", "partitions": 1, "rounds": 2, "workers": 1, "model": "logistic"}
    line = command_line("train", *(f"--{key}={value}" for key, value in options.items()))
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    # Another one is there at once: that the first is lost may be told with the end of its round.
    (lost,) = (line for line in lines if not line.startswith("round"))
    assert re.fullmatch(r"worker tcp://127\.0\.0\.1:\d+ is lost; mapped again in round 1: partition 0", lost)
    assert [line.split()[1] for line in lines if line != lost] == ["1/2", "2/2"]
    assert lines.index(lost) < 2


FLAGS = ["--executor", "inline", "--rounds", "2", "--model", "logistic"]


def test_a_map_that_interrupts_the_command_is_one_line(capsys, own) -> None:
    path = own(DEADLY_ONCE.format(how="raise KeyboardInterrupt"))
    code, line = refused(capsys, "train", *FLAGS, "--loss", f"{path}:loss")
    assert (code, line.split(";")[0]) == (1, "interrupted")


def test_a_quiet_training_prints_nothing_but_json_and_errors(tmp_path: Path) -> None:
    line = command_line("train", "--executor", "inline", "--partitions", "2", "--rounds", "2", "--quiet", "--json")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
