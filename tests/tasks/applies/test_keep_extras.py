"""What an apply remembers of the extras."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from storage.values.state import State, Update
from tasks.applies.memory import KeepExtras
from tasks.applies.sgd import Sgd

PARAMS = {"float32": torch.ones(2)}


def test_the_extras_are_kept_beside_the_memory_of_the_apply() -> None:
    plain, keeping = Sgd(0.5, 0.9), KeepExtras(Sgd(0.5, 0.9), ("control",))
    one, two = State(PARAMS, memory=plain.init(PARAMS)), State(PARAMS, memory=keeping.init(PARAMS))
    assert two.memory["control"]["float32"].tolist() == [0, 0]
    for number in (3.0, 4.0):
        extras = {"control": {"float32": torch.full((2,), number)}}
        one, two = plain(one, Update(PARAMS)), keeping(two, Update(PARAMS, extras=extras))
        assert torch.equal(one.params["float32"], two.params["float32"])
        assert torch.equal(one.memory["velocity"]["float32"], two.memory["velocity"]["float32"])
        assert two.memory["control"]["float32"].tolist() == [number] * 2
        assert one.round == two.round


@dataclass(frozen=True)
class Told(Sgd):
    told: str = ""

    def bound(self, objective: str, partitions: str) -> Told:
        return replace(self, told=objective + partitions)


def test_the_apply_inside_is_told_what_it_works_for() -> None:
    assert KeepExtras(Told(), ()).bound("a", "b") == KeepExtras(Told(told="ab"), ())
