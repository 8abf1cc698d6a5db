"""Gram matrices of layers' inputs, and what a permutation of units makes of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.solving.grams import gram_matrices, layers_of, permuted_grams
from tests.tasks.matching.analysed import analysed, networks, scrambled


def test_a_gram_matrix_is_the_mean_product_of_inputs_and_a_one() -> None:
    network = nn.Linear(2, 3)
    inputs = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, -1.0]])
    (gram,) = gram_matrices(network, network.state_dict(), (inputs,)).values()
    wanted = torch.tensor([[10.0, 2.0, 4.0], [2.0, 5.0, 1.0], [4.0, 1.0, 3.0]]) / 3
    torch.testing.assert_close(gram, wanted[None])


def test_each_group_of_a_convolution_has_a_matrix_of_its_own() -> None:
    convolution, inputs = nn.Conv2d(4, 6, 3, groups=2), torch.randn(5, 4, 6, 6)
    (gram,) = gram_matrices(convolution, convolution.state_dict(), (inputs,)).values()
    assert gram.shape == (2, 19, 19)
    (second,) = gram_matrices(nn.Conv2d(2, 3, 3), nn.Conv2d(2, 3, 3).state_dict(), (inputs[:, 2:],)).values()
    torch.testing.assert_close(gram[1:], second)


def test_batches_do_not_change_a_matrix() -> None:
    network, inputs = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(300, 4)
    whole = gram_matrices(network, network.state_dict(), (inputs,))
    parts = [gram_matrices(network, network.state_dict(), (part,)) for part in inputs.split(100)]
    for name, gram in whole.items():
        torch.testing.assert_close(gram, torch.stack([part[name] for part in parts]).mean(0))


@pytest.mark.parametrize("name", networks("shufflenet", "gpt"))  # in groups, of heads
def test_a_permuted_network_has_the_permuted_matrices(name) -> None:
    network, inputs, units = analysed(name)
    _, state, permuted, order = scrambled(name)
    grams, wanted = (gram_matrices(network, each, inputs) for each in (state, permuted))
    found = permuted_grams(grams, layers_of(network, inputs), units, order)
    assert found.keys() == wanted.keys()
    for weight, gram in found.items():
        size = wanted[weight].abs().max().item()
        torch.testing.assert_close(gram, wanted[weight], rtol=1e-3, atol=1e-4 * max(size, 1e-6), msg=weight)


def test_inputs_that_are_not_finite_are_refused_by_the_layers_name() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(UsageError, match=r"the inputs of 0\.weight are not finite"):
        gram_matrices(network, network.state_dict(), (torch.full((4, 2), torch.inf),))


@pytest.mark.parametrize(("examples", "used"), [(1, 1), (99, 99), (101, 100), (143, 142), (1543, 1536)])
def test_few_examples_are_left_over(examples: int, used: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(examples, 3, dtype=torch.float64)
    network = nn.Linear(3, 2, bias=False).double()
    grams = gram_matrices(network, network.state_dict(), (inputs,))
    wanted = inputs[:used].T @ inputs[:used] / used
    torch.testing.assert_close(grams["weight"][0], wanted.float())


class InPlace(nn.Module):
    """Its hidden units are written over once they were read, and what it reads last is filled before."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.within, self.out = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.filled, self.last = nn.Linear(6, 2), nn.Linear(6, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.into(inputs)
        hidden += self.within(hidden)
        every = torch.zeros_like(hidden)
        every[:, :3] = self.out(hidden.relu_())
        every[:, 4:] = self.filled(every)
        return self.last(every)


def test_inputs_that_are_written_over_later_count_as_they_were_read() -> None:
    torch.manual_seed(0)
    network, inputs = InPlace().requires_grad_(False), torch.randn(40, 5)
    state = network.state_dict()
    grams = gram_matrices(network, state, (inputs,))
    read = network.into(inputs)
    hidden = (read + network.within(read)).relu()
    filled = torch.cat([network.out(hidden), torch.zeros(40, 3)], 1)
    last = torch.cat([filled[:, :4], network.filled(filled)], 1)
    wanted = {"into": inputs, "within": read, "out": hidden, "filled": filled, "last": last}
    for name, rows in wanted.items():
        extended = torch.cat([rows, torch.ones(len(rows), 1)], 1)
        torch.testing.assert_close(grams[f"{name}.weight"], (extended.T @ extended / len(rows))[None])
