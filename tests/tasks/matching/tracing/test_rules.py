"""One small network for each operation: its units may be permuted, and those that should be free are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundweave.storage.errors import ModelError
from roundweave.tasks.matching.check import TOLERANCE, function_error
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.tracing.operations import CASES, Network
from tests.tasks.matching.tracing.programs import program, sensitivity


def units_of(model, inputs):
    """The units of a small network, in which what is not used reads nothing by any other call."""
    return find_units(model, inputs)


@pytest.mark.parametrize("name", CASES)
def test_an_operation(name):
    parts, forward, sizes = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model, inputs = Network(parts, forward).eval(), (torch.randn(4, 6),)
    units = units_of(model, inputs)
    assert function_error(model, inputs, units) <= TOLERANCE
    assert sorted(group.size for group in units.groups.values()) == sizes
    assert not units.unknown


def test_an_operation_without_a_rule_pins_what_it_touches_and_is_named():
    model = Network({}, lambda m, x: (torch.fft.rfft(m.a(x)).abs(), m.b(x).sum(1)))
    units = units_of(model, (torch.randn(4, 6),))
    assert list(units.unknown) == ["aten._fft_r2c.default"]
    assert "_fft_r2c" in units.pinned["a.bias"] and units.pinned["out.bias"] == "not used"
    assert [group.size for group in units.groups.values()] == [8]


def test_an_operation_of_another_library_is_not_taken_for_one_of_torch():
    @torch.library.custom_op("strange::relu", mutates_args=())
    def strange(x: Tensor) -> Tensor:
        return x.cumsum(-1)

    strange.register_fake(torch.empty_like)
    units = units_of(Network({}, lambda m, x: m.out(strange(m.a(x)))), (torch.randn(4, 6),))
    assert list(units.unknown) == ["strange.relu.default"] and not units.groups


def test_an_operation_that_writes_and_gives_nothing_is_not_passed_over():
    def added(m: Network, x: Tensor) -> Tensor:
        sums = m.a(x)
        torch._foreach_add_([sums], [m.b(x)])
        return m.out(sums)

    units = units_of(Network({}, added), (torch.randn(4, 6),))
    assert list(units.unknown) == ["aten._foreach_add_.List"] and not units.groups


def test_a_shape_that_depends_on_the_data_is_refused_in_one_line():
    model = Network({}, lambda m, x: m.a(x)[x[:, 0] > 0].sum(0))
    with pytest.raises(ModelError, match="depends on the data"):
        units_of(model, (torch.randn(4, 6),))


def sound(seed: int, length: int) -> bool:
    """Whether units were permuted without harm; where they were not, rounding must be why."""
    model, inputs = program(seed, length)
    units = units_of(model, inputs)
    error = function_error(model, inputs, units, seed)
    assert error <= TOLERANCE or sensitivity(model, inputs, units, seed) > 1e-11, (seed, length, error)
    return error <= TOLERANCE


@settings(deadline=None, max_examples=7)
@example(11609, 14)  # of equal values topk gives the first
@example(13810, 15)
@example(13652, 7)  # rows are looked up by sorted numbers, and stand beside rows in their own order
@given(st.integers(0, 2**40), st.integers(2, 20))
def test_random_programs(seed, length):
    sound(seed, length)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20000, 500))
def test_many_random_programs(first):
    compared = [sound(seed, 5 + seed % 25) for seed in range(first, first + 500)]
    assert sum(compared) > 490
