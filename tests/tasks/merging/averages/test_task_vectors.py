"""Averages of what training changed in a base network, by numbers that were computed by hand, and their laws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave.tasks.merging.averages.base import Versions
from roundweave.tasks.merging.averages.task_vectors import DareLinear, DareTies, TaskArithmetic, Ties


def of(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


BASE = of(1, 1, 1, 1)
A = of(5, 1, 2, -1)  # changes by 4, 0, 1, -2
B = of(-1, 0, 4, -3)  # changes by -2, -1, 3, -4


def test_the_sum_of_task_vectors_by_hand() -> None:
    # 1 + 0.5 * (2 * (4, 0, 1, -2) - (-2, -1, 3, -4))
    found = TaskArithmetic(scaling=0.5)(Versions("w", [A, B], (2, -1), BASE))
    assert found.tolist() == [6, 1.5, 0.5, 1]
    # 1 + (2 * (4, 0, 1, -2) + (-2, -1, 3, -4)) / 3
    found = TaskArithmetic(normalize=True)(Versions("w", [A, B], (2, 1), BASE))
    assert found.tolist() == pytest.approx([3, 2 / 3, 8 / 3, -5 / 3])


def test_ties_by_hand() -> None:
    # Of 4 changes 2 stay: (4, 0, 0, -2) and (0, 0, 3, -4). Elected are +, +, +, -.
    # Their means are of those that agree: 4, none, 3, (-2 - 4) / 2.
    assert Ties(density=(0.5,))(Versions("w", [A, B], (1, 1), BASE)).tolist() == [5, 1, 4, -2]
    # Without normalize the sums: 4, 0, 3, -6; scaled by 0.5
    found = Ties(density=(0.5,), normalize=False, scaling=0.5)(Versions("w", [A, B], (1, 1), BASE))
    assert found.tolist() == [3, 1, 2.5, -2]
    # Weighted 3 to 1, of the first one all: 3 * (4, 0, 1, -2) and (0, 0, 3, -4): 12 / 3, none, 6 / 4, -10 / 4
    found = Ties(density=(1, 0.5))(Versions("w", [A, B], (3, 1), BASE))
    assert found.tolist() == [5, 1, 2.5, -1.5]


def test_signs_are_elected_by_sum_or_by_count() -> None:
    changed = Versions("w", [of(10.0), of(-1.0), of(-2.0)], (1, 1, 1), of(0.0))
    assert Ties(density=(1,))(changed).tolist() == [10]  # 10 - 1 - 2 > 0
    assert Ties(density=(1,), elect="count")(changed).tolist() == [-1.5]  # two of three


def test_the_largest_changes_stay_and_of_equal_ones_the_first() -> None:
    base, network = torch.zeros(5), of(1, -2, 2, 2, 0.5)
    # int(0.4 * 5) = 2 stay
    assert Ties(density=(0.4,))(Versions("w", [network], (1,), base)).tolist() == [0, -2, 2, 0, 0]
    assert Ties(density=(0.99,))(Versions("w", [network], (1,), base)).tolist() == [1, -2, 2, 2, 0]
    assert Ties(density=(0.01,))(Versions("w", [network], (1,), base)).tolist() == [0, -2, 0, 0, 0]  # at least one


def test_a_whole_density_drops_nothing() -> None:
    for coefficients in ((1, 1), (0.3, 0.7)):
        arithmetic = TaskArithmetic()(Versions("w", [A, B], coefficients, BASE))
        assert torch.equal(DareLinear(density=(1,))(Versions("w", [A, B], coefficients, BASE)), arithmetic)
        signed = Ties(density=(1,), normalize=False)(Versions("w", [A, B], coefficients, BASE))
        assert torch.equal(DareTies(density=(1,))(Versions("w", [A, B], coefficients, BASE)), signed)


def test_dropping_keeps_the_expectation() -> None:
    """Of 200,000 changes of 3, of which a quarter stays as 12, the mean is 3, the variance 0.25 * 144 - 9 = 27."""
    base, network = torch.zeros(200_000), torch.full((200_000,), 3.0)
    found = DareLinear(density=(0.25,))(Versions("w", [network], (1,), base))
    assert set(found.tolist()) == {0.0, 12.0}
    # The standard error of the mean is sqrt(27 / 200000) = 0.0116.
    assert found.mean().item() == pytest.approx(3, abs=0.06)
    assert found.var().item() == pytest.approx(27, rel=0.02)
    plain = DareLinear(density=(0.25,), rescale=False)(Versions("w", [network], (1,), base))
    assert set(plain.tolist()) == {0.0, 3.0}


def test_what_is_dropped_depends_on_the_seed_the_network_and_the_name_alone() -> None:
    base, network = torch.zeros(64), torch.ones(64)

    def drawn(name: str, seed: int = 0, number: int = 0) -> torch.Tensor:
        values = [base] * number + [network]
        return DareLinear(density=(0.5,), seed=seed)(Versions(name, values, [1.0] * len(values), base))

    assert torch.equal(drawn("w"), drawn("w"))
    others = [drawn("v"), drawn("w", seed=1), drawn("w", number=1)]
    assert not any(torch.equal(drawn("w"), other) for other in others)


numbers = st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4)


@given(numbers, numbers)
def test_a_negative_task_vector_undoes_it(network, base) -> None:
    assert torch.equal(
        TaskArithmetic()(Versions("w", [of(*network), of(*network)], (1, -1), of(*base))), of(*base)
    )


@given(numbers, numbers)
def test_one_network_as_it_is_comes_back_but_for_rounding(network, base) -> None:
    found = TaskArithmetic()(Versions("w", [of(*network)], (1,), of(*base)))
    torch.testing.assert_close(found, of(*network), rtol=0, atol=2e-5)


@given(numbers, numbers, st.sampled_from([0.5, 1.0, 2.0]))
def test_ties_of_one_whole_network_is_task_arithmetic(network, base, scaling) -> None:
    tied = Ties(density=(1,), scaling=scaling)(Versions("w", [of(*network)], (1,), of(*base)))
    assert torch.equal(tied, TaskArithmetic(scaling=scaling)(Versions("w", [of(*network)], (1,), of(*base))))
