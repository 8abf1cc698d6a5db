"""Networks of complex numbers: the imaginary part counts in each step, by numbers that were computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from roundweave.storage.errors import ShapeMismatch, UnitsUnsound
from roundweave.tasks.matching.check import check_function, function_error
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.search.activations import activation_moments
from roundweave.tasks.matching.search.matches import match
from roundweave.tasks.matching.units import find_units


class Waves(nn.Module):
    """Complex units, of which the size is taken."""

    def __init__(self, units: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(4, units, bias=False, dtype=torch.complex64)
        self.last = nn.Linear(units, 3, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(torch.complex(x, x.square())).tanh()).abs()


INPUTS = torch.linspace(-1, 1, 20).reshape(5, 4)


def found(units: int = 6) -> tuple[Waves, UnitGroups]:
    network = Waves(units).eval()
    return network, find_units(network, INPUTS)


def imaginary(*rows: complex) -> dict[str, Tensor]:
    """Two units that differ in their imaginary parts alone."""
    first = torch.tensor(rows)[:, None].expand(2, 4)
    return {"first.weight": first, "last.weight": torch.zeros(3, 2) + 0j, "last.bias": torch.zeros(3) + 0j}


def test_the_check_sees_what_only_imaginary_parts_tell() -> None:
    class Sine(Waves):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.last.bias.imag[0] + self.first.weight.imag[0, 0]

    network, (_, units) = Sine().eval(), found()
    with pytest.raises(UnitsUnsound):
        check_function(network, INPUTS, units)
    assert function_error(network, INPUTS, units) > 1e-3


def test_units_are_told_apart_by_their_imaginary_parts() -> None:
    _, units = found(2)
    order = match(imaginary(1 + 2j, 1 - 2j), imaginary(1 - 2j, 1 + 2j), units)
    assert order["first"].tolist() == [1, 0]


def test_a_similarity_is_the_real_part_of_the_product_with_the_conjugate() -> None:
    _, units = found(2)
    # Re((1 + 2i) conj(2 + i)) / 5 and Re(i conj(1)) / 1
    similar = units.similarity(imaginary(1 + 2j, 1j), imaginary(2 + 1j, 1 + 0j))["first"]
    assert similar.tolist() == pytest.approx([0.8, 0.0])


def test_a_permuted_copy_is_recovered_by_weights_and_by_activations() -> None:
    network, units = found()
    state = network.state_dict()
    permuted = units.permute(state, units.random(torch.Generator().manual_seed(1)))
    moments = activation_moments(network, [state, permuted], INPUTS, units, [(0, 1)])
    for by in ("weights", "activations", "mixed"):
        back = units.permute(permuted, match(state, permuted, units, by, moments=moments))
        assert all(torch.equal(back[name], state[name]) for name in state)


def test_a_real_network_is_not_matched_with_a_complex_one() -> None:
    _, units = found(2)
    real = {name: tensor.real for name, tensor in imaginary(1 + 2j, 1j).items()}
    for pair in ((real, imaginary(1j, 1j)), (imaginary(1j, 1j), real)):
        with pytest.raises(ShapeMismatch, match="weight is complex in one network and real in another"):
            match(*pair, units)
