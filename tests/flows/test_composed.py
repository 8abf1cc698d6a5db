from __future__ import annotations

import ast

import jedi
import pytest

from tests.flows.stub import STUB, stub


def test_the_stub_has_every_option() -> None:
    made, there = (ast.dump(ast.parse(text)) for text in (stub(), STUB.read_text("utf-8")))
    assert made == there, "the options have changed: run `python -m tests.flows.stub`"


@pytest.mark.parametrize("begun", ["TrainConfig(target_acc", "TrainConfig().target_acc", "fork('a@2').target_acc"])
def test_an_editor_completes_options_of_plugins(begun: str) -> None:
    (completed,) = jedi.Script(f"import roundweave as rw\nrw.{begun}").complete()
    assert completed.name.removesuffix("=") == "target_accuracy"
