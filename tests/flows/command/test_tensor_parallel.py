"""Ranks that share a network, by the command: what cannot be shared is one clear line."""

from __future__ import annotations

import pytest

from roundweave.flows.stored import open_run
from tests.flows.command.in_process import refused, run

MINE = """
import torch
from torch import nn
def data():
    return torch.arange(600.0).reshape(50, 12).sin(), torch.arange(50) % 2
class views(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 2)
    def forward(self, inputs):
        return self.second(self.first(inputs).view(-1, 8))
"""
TWO = ["--ranks", "2"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--ranks", "0"], 2, "ranks"),
        (["--units", "fc1"], 2, "units and hybrid say what ranks share: give ranks, 2 or more"),
        (["--hybrid"], 2, "units and hybrid say what ranks share: give ranks, 2 or more"),
        ([*TWO, "--clip-norm", "1"], 2, "not for map LocalSteps(clip_norm=1.0); leave one of them out"),
        (
            [*TWO, "--optimizer", "Adafactor"],
            2,
            "not for map LocalSteps(optimizer='Adafactor'); leave one",
        ),
        (
            [*TWO, "--algorithm", "fed_prox"],
            2,
            "by its own gradient alone, not for map FedProx()",
        ),
        ([*TWO, "--units", "fc3"], 2, "units 'fc3' cannot be shared by ranks; those of fc1 can"),
        ([*TWO, "--units", "fc1, fc3"], 2, "units 'fc3' cannot be shared by ranks; those of fc1 can"),
        ([*TWO, "--hybrid"], 1, "nothing is trained before fc1, the first of the shared layers; leave hybrid out"),
        (["--ranks", "257"], 1, "Mlp has no linear layers whose units 257 ranks could share; leave ranks out"),
        ([*TWO, "--data", "{mine}:data", "--model", "{mine}:views"], 1, "shares of units first give another"),
    ],
)
def test_what_cannot_be_shared_is_one_clear_line(capsys, own, tmp_path, arguments, code, says) -> None:
    mine = own(MINE)
    arguments = [argument.replace("{mine}", mine) for argument in arguments]
    found, line = refused(capsys, "train", "--executor", "inline", *arguments)
    assert found == code
    assert says in line
    assert not list((tmp_path / "runs").glob("*.zarr"))


def test_units_are_named_with_commas_between_them(capsys) -> None:
    options = ["--ranks", "2", "--units", "fc1", "--rounds", "1", "--local-steps", "2", "--name", "named"]
    code, _, err = run(capsys, "train", "--executor", "inline", *options)
    assert code == 0, err
    assert open_run("named").config["units"] == ["fc1"]
