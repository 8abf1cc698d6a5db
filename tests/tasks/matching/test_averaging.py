"""Weighted means of networks, by numbers that were computed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave.storage.errors import ShapeMismatch, UsageError
from roundweave.tasks.matching.averaging import average


def networks(*values: float, dtype: torch.dtype = torch.float32) -> list[dict[str, torch.Tensor]]:
    """Networks of two layers, of which the second is ten times the first."""
    return [
        {"fc1.weight": torch.tensor([[v, -v]], dtype=dtype), "fc10.weight": torch.tensor([10 * v], dtype=dtype)}
        for v in values
    ]


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    [
        ((1, 3), (1, 1), 2),
        ((1, 5), (1000, 3000), 4),  # (1000 * 1 + 3000 * 5) / 4000
        ((1, 4, 10), (1, 2, 5), 7.375),  # (1 * 1 + 2 * 4 + 5 * 10) / 8
        ((3, 5, 1), (0, 1, 0), 5),
    ],
)
def test_means_by_hand(values, weights, mean) -> None:
    found = average(networks(*map(float, values)), weights)
    assert (found["fc1.weight"].tolist(), found["fc10.weight"].tolist()) == ([[mean, -mean]], [10 * mean])


@pytest.mark.parametrize("unit", [1e-300, 1e-45, 1e38, 1e300])
def test_only_the_proportion_of_weights_counts(unit: float) -> None:
    found = average(networks(1.0, 5.0), (unit, 3 * unit))["fc1.weight"]
    assert found[0].tolist() == pytest.approx([4.0, -4.0])


def test_a_layer_has_weights_of_its_own_and_a_layer_of_a_longer_name_has_not() -> None:
    found = average(networks(1.0, 3.0), (1, 1), {"fc1": (1, 0)})
    assert found["fc1.weight"].tolist() == [[1.0, -1.0]]
    assert found["fc10.weight"].tolist() == [20.0]
    found = average(networks(1.0, 3.0), (1, 1), {"fc10.weight": (0.25, 0.75)})
    assert found["fc1.weight"].tolist() == [[2.0, -2.0]]
    assert found["fc10.weight"].tolist() == [25.0]


def test_complex_numbers_keep_their_imaginary_part() -> None:
    states = [{"w": torch.tensor([1 + 2j, 0j])}, {"w": torch.tensor([3 - 4j, 8j])}]
    # (1 * (1 + 2i) + 3 * (3 - 4i)) / 4, and 3 * 8i / 4
    found = average(states, (1, 3))["w"]
    assert found.tolist() == [2.5 - 2.5j, 6j]
    assert found.dtype == torch.complex64
    wide = average([{"w": state["w"].to(torch.complex128)} for state in states], (1, 3))["w"]
    assert (wide.tolist(), wide.dtype) == ([2.5 - 2.5j, 6j], torch.complex128)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ([1.0], [1.0, 1.0], r"float of shape \(1,\) and float of shape \(2,\)"),
        ([1.0], None, r"float of shape \(1,\) and missing"),
        ([1 + 2j], [1.0], r"complex of shape \(1,\) and float of shape \(1,\)"),
        ([1.0], [1 + 2j], r"complex of shape \(1,\) and float of shape \(1,\)"),
    ],
)
def test_a_tensor_that_a_network_has_not_or_otherwise_is_refused(one, other, says) -> None:
    states = [{} if values is None else {"w": torch.tensor(values)} for values in (one, other)]
    with pytest.raises(ShapeMismatch, match=rf"tensor w is {says} in different networks"):
        average(states, (1, 1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_integers_of_8_bits_are_kept_where_they_are_equal_and_else_refused(dtype: torch.dtype) -> None:
    one, other = ({"n": torch.tensor(values, dtype=dtype)} for values in ([1, 2], [1, 3]))
    assert average([one, one], (1, 3))["n"].tolist() == [1, 2]
    with pytest.raises(UsageError, match="tensor n has other integers of 8 bits in each network"):
        average([one, other], (1, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floats_are_rounded_once(dtype: torch.dtype) -> None:
    # 1, 1 and 2 are numbers of all these types, and 4 / 3 rounds to one of them; sums would not.
    found = average([{"w": torch.tensor([v]).to(dtype)} for v in (1.0, 1.0, 2.0)], (1, 1, 1))["w"]
    assert found.dtype == dtype
    assert found.float().tolist() == torch.tensor([4 / 3]).to(dtype).float().tolist()


def test_float64_keeps_what_float32_would_lose() -> None:
    small = 2.0**-40
    found = average(networks(1.0, 1.0 + 2 * small, dtype=torch.float64), (1, 1))["fc1.weight"]
    assert found.dtype == torch.float64
    assert found[0, 0].item() == 1.0 + small


def test_the_networks_are_left_as_they_are() -> None:
    states = networks(1.0, 3.0)
    found = average(states, (1, 0))
    found["fc1.weight"].zero_()
    assert states[0]["fc1.weight"].tolist() == [[1.0, -1.0]]
    assert states[1]["fc1.weight"].tolist() == [[3.0, -3.0]]


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize("coefficients", [(1, 1), (1, 1, 1), (3, 1), (0.1, 0.7, 0.3), (1e300, 2e300)])
def test_equal_networks_of_the_largest_numbers_have_a_finite_mean(coefficients) -> None:
    network = {"fc1.weight": torch.tensor([[3e38, -3e38]])}
    found = average([network] * len(coefficients), coefficients)
    torch.testing.assert_close(found, network)


@pytest.mark.parametrize(
    "coefficients", [(1,), (1, 1, 1), (), (0, 0), (-1, 1), (NAN, 1), (1, NAN), (INFINITE, 1), (1, -INFINITE)]
)
def test_coefficients_that_do_not_fit_are_refused(coefficients) -> None:
    with pytest.raises(UsageError, match="2 networks need 2 coefficients"):
        average(networks(1.0, 3.0), coefficients)
    with pytest.raises(UsageError, match="2 networks need 2 coefficients"):
        average(networks(1.0, 3.0), (1, 1), {"fc1": coefficients})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [2, 5, 19])
def test_the_mean_of_an_element_is_that_of_the_element_alone(count: int, dtype: torch.dtype) -> None:
    """To the bit, whatever the size of the tensor is and wherever it is in it."""
    torch.manual_seed(0)
    states = [{"weight": torch.randn(70_000).to(dtype)} for _ in range(count)]
    weights = [n + 1.0 for n in range(count)]
    whole = average(states, weights)["weight"]
    for start, stop in ((0, 1), (65_530, 65_542), (69_000, 70_000)):
        parts = [{"weight": state["weight"][start:stop]} for state in states]
        assert torch.equal(average(parts, weights)["weight"], whole[start:stop])


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5), st.data())
def test_all_weight_on_one_network_is_that_network(values, data) -> None:
    chosen = data.draw(st.integers(0, len(values) - 1))
    coefficients = [float(i == chosen) for i in range(len(values))]
    found = average(networks(*values), coefficients)
    assert torch.equal(found["fc1.weight"], networks(values[chosen])[0]["fc1.weight"])
