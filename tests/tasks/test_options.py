"""How one algorithm takes the options of another."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from tasks.algebra import Algorithm
from tasks.algorithms.averaging import fed_avg
from tasks.options import extending


def test_an_algorithm_extends_another() -> None:
    @extending(fed_avg, without=("momentum",), lr=0.5)
    def own(*, depth: int = 3, soft: int = 1, **options: object) -> Algorithm:
        built.update(options, depth=depth)
        return fed_avg(**options)

    built: dict[str, object] = {}
    parameters = inspect.signature(own).parameters
    assert set(parameters) == {*inspect.signature(fed_avg).parameters, "depth"} - {"momentum"}
    assert (parameters["lr"].default, parameters["soft"].default, parameters["depth"].default) == (0.5, 1, 3)
    hints, known = (get_type_hints(make, include_extras=True) for make in (own, fed_avg))
    assert (hints["depth"], hints["clip_norm"]) == (int, known["clip_norm"])
    assert own(nesterov=False).map.lr == 0.5
    assert built == {"lr": 0.5, "nesterov": False, "depth": 3}
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
        own(momentum=0.5)
