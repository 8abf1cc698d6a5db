"""From a state to a network and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from roundweave import Dataset, Examples, Gradient, Partitions, Split, views
from roundweave.storage.errors import ModelError
from roundweave.tasks.matching import check_function, find_units
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.networks.reference import MODELS, Gpt
from roundweave.tasks.networks.scores import mean_squared_error
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.own_code.code import find_code

ODD = """
import torch
from torch import nn
class Net(nn.Module):
    '''Tied and frozen parameters, BatchNorm, and a buffer that is not kept.'''
    def __init__(self, width=3):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(4, width)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.register_buffer("scale", torch.full((width,), 2.0), persistent=False)
        self.register_buffer("shared", self.norm.running_mean)
    def forward(self, inputs):
        self.scale += 1
        return self.norm(self.first(inputs)) * self.scale + self.second(inputs)
class Still(Net):
    def forward(self, inputs):
        return self.norm(self.first(inputs)) * self.scale + self.second(inputs)
"""


@pytest.fixture
def odd(own) -> Objective:
    return objective(find_code(f"{own(ODD)}:Net"))


def objective(
    model, loss: str = "cross_entropy", seed: int = 0, inputs=(4,), dtype="float32", **options
) -> Objective:
    return Objective(ModelSpec(model, inputs, 3, dtype, seed, json.dumps(options)), loss)


def part(count: int = 20) -> Examples:
    generator = torch.Generator().manual_seed(0)
    return Examples(torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator))


def test_the_layout_tells_trained_frozen_tied_and_kept_tensors_apart(odd) -> None:
    layout = odd.layout
    assert [spec.name for spec in layout.params] == ["first.weight", "first.bias", "norm.weight", "norm.bias"]
    assert [spec.name for spec in layout.frozen] == ["second.bias"]
    assert {spec.name for spec in layout.buffers} == {"shared", "norm.running_var", "norm.num_batches_tracked"}
    assert dict(layout.aliases) == {"second.weight": "first.weight", "norm.running_mean": "shared"}


def test_a_network_has_the_states_numbers(odd) -> None:
    state = odd.initial()
    state.params["float32"].copy_(torch.arange(21.0))
    state.buffers["int64"].fill_(9)
    state.frozen["float32"].fill_(5)
    network = odd.network(state)
    assert network.training
    assert network.first.weight.flatten().tolist() == list(range(12))
    assert network.norm.num_batches_tracked.item() == 9
    assert network.second.bias.tolist() == [5, 5, 5]
    assert not network.second.bias.requires_grad
    assert network.scale.tolist() == [2, 2, 2]


def test_two_networks_of_a_state_share_nothing(odd) -> None:
    state = odd.initial()
    one, two = odd.network(state), odd.network(state)
    for network in (one, two):
        for tensor in [*network.parameters(), *network.buffers()]:
            tensor.data.add_(1)
    assert torch.equal(one.first.weight, two.first.weight)
    assert torch.equal(odd.initial().params["float32"], state.params["float32"])


@pytest.mark.parametrize("model", sorted(MODELS))
def test_initial_weights_depend_on_the_seed_alone(model: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        spec = ModelSpec(model, (8,) if model == "gpt" else (1, 8, 8), 3, "float32", seed)
        return torch.cat([p.detach().flatten() for p in spec.build().parameters()])

    first = weights(1)
    torch.manual_seed(123)
    torch.rand(7)
    state = torch.random.get_rng_state()
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)
    assert torch.equal(torch.random.get_rng_state(), state), "building drew from the caller's generator"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_networks_have_the_wanted_type(dtype: str) -> None:
    what = objective("mlp", dtype=dtype)
    assert list(what.initial().params) == [dtype]
    assert what.network(what.initial()).fc1.weight.dtype == getattr(torch, dtype)


def test_squared_errors_by_hand() -> None:
    assert mean_squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])).item() == (1 + 4) / 2
    assert mean_squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]])).item() == 2.0
    with pytest.raises(ModelError, match=r"outputs of shape \(2, 2\) for targets of \(2,\)"):
        mean_squared_error(torch.zeros(2, 2), torch.zeros(2))


# Networks that do not fit the examples, and some that do.


@dataclass(eq=False)
class Given:
    """A source of examples."""

    examples: Examples = field(default_factory=part)
    partitioned = False

    def load(self, partition: int, partitions: int) -> Dataset:
        return Dataset(self.examples)


def fit(what: Objective, source: Given | None = None) -> Objective:
    partitions = Partitions(source or Given(), Split(1))
    return check_fit(what, partitions, partitions.describe(0), 0)


SEQUENCES = Given(Examples(torch.arange(10).reshape(2, 5) + 54, torch.arange(10).reshape(2, 5) + 55))
"""Of five tokens, of which the greatest is 64."""


def of_sequences(outputs: int = 65, **more: object) -> Objective:
    spec = ModelSpec("gpt", (5,), outputs, "float32", 0, '{"vocabulary": 65}')
    return Objective(spec, "cross_entropy", **more)


def test_a_network_of_sequences_is_checked_with_its_scores() -> None:
    assert fit(of_sequences(), SEQUENCES).scores == ("token_accuracy",)
    assert fit(of_sequences(scores=()), SEQUENCES).scores == ()
    with pytest.raises(ModelError, match=r"5\) int64 gives 64 outputs, but labels go up to 64"):
        fit(of_sequences(64), SEQUENCES)
    with pytest.raises(ModelError, match=r"score accuracy needs outputs .* token_accuracy scores sequences"):
        fit(of_sequences(scores=("token_accuracy", "accuracy")), SEQUENCES)


def test_one_output_an_example_is_none_for_a_sequence(own) -> None:
    source = "import torch\ndef model(): return torch.nn.Sequential(torch.nn.Embedding(65, 3), torch.nn.Flatten())"
    spec = ModelSpec(find_code(f"{own(source)}:model"), (5,), 65, "float32", 0)
    says = r"gives outputs of shape \(\d, 15\), but one for each class of each label is \(\d, 5, 65\)"
    with pytest.raises(ModelError, match=says):
        fit(Objective(spec, "cross_entropy"), SEQUENCES)


NORMED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
        self.doubled = self.layer.weight * 2
    def forward(self, inputs): return self.layer(inputs)
"""


def test_a_network_that_holds_what_follows_from_its_parameters_fits(own) -> None:
    assert fit(objective(find_code(f"{own(NORMED)}:Net"))).layout.params


def test_a_network_that_keeps_what_no_state_holds_is_refused(odd) -> None:
    with pytest.raises(ModelError, match="a second forward pass on the same examples gives another output 0"):
        fit(odd)


def test_checking_the_fit_changes_nothing(own) -> None:
    odd = objective(find_code(f"{own(ODD)}:Still"))
    before = odd.initial().buffers["float32"].clone()
    state = torch.random.get_rng_state()
    fit(odd)
    assert torch.equal(odd.initial().buffers["float32"], before)
    assert torch.equal(torch.random.get_rng_state(), state)


def built(own, line: str) -> nn.Module:
    """A layer after this line of its function."""
    source = f"import torch\nfrom torch import nn\ndef f():\n    net = nn.Linear(4, 2)\n    {line}\n    return net"
    return ModelSpec(find_code(f"{own(source)}:f"), (4,), 2, "float32", 0).build()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("net = nn.Linear(4, 2, device='meta')", "weight is sparse, without values"),
        ("net.register_buffer('s', torch.eye(3).to_sparse())", "s is sparse, without values"),
        ("net.c = nn.Parameter(torch.ones(2, dtype=torch.cfloat))", "c is complex64, and only real numbers"),
        ("net.register_buffer('z', torch.ones(2) * 1j, persistent=False)", "z is complex64, and only real"),
        ("net.register_buffer('s', torch.ones(3, dtype=torch.uint16))", "or uint16, which cannot be averaged"),
    ],
)
def test_a_model_whose_tensors_cannot_be_averaged_and_kept_is_refused(own, line: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        built(own, line)


def test_a_sparse_buffer_that_is_not_kept_is_no_matter(own) -> None:
    network = built(own, "net.register_buffer('graph', torch.eye(3).to_sparse(), persistent=False)")
    assert network.graph.is_sparse


TOKENS = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(0))


def sequences(**options: int) -> Objective:
    small = {"width": 12, "depth": 2, "heads": 3}
    return Objective(ModelSpec("gpt", (7,), 11, "float32", 0, json.dumps(small | options)), "cross_entropy")


def network() -> Gpt:
    return sequences().model.build().double().eval()


def test_it_begins_with_the_loss_of_a_guess_among_all_tokens() -> None:
    what = sequences()
    loss = Gradient()(what, what.initial(), Examples(TOKENS, TOKENS.roll(1)), {}, 0).metrics["train_loss"]
    assert loss == pytest.approx(math.log(11), abs=0.05)


def test_its_units_are_found_and_may_be_permuted() -> None:
    model = network()
    units = find_units(model, (TOKENS,))
    assert units.coverage > 0.8
    assert units.unknown == {}
    assert check_function(model, (TOKENS,), units) <= 1e-10


def test_the_mask_is_not_kept() -> None:
    what = sequences()
    assert what.layout.buffers == ()
    assert what.network(what.initial()).blocks[0].attention.future.sum() == 21


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(ModelError, match="the gpt's width 12 cannot be divided among 5 heads"):
        Gpt((7,), 11, width=12, heads=5)


def test_checking_the_fit_changes_no_tensors_that_a_file_keeps(own) -> None:
    """Weights of a file that are assigned to each network, and not copied."""
    source = """
import torch
KNOWN = {"weight": torch.arange(12.0).reshape(3, 4) / 12, "bias": torch.ones(3)}
def model():
    network = torch.nn.Linear(4, 3)
    network.load_state_dict(KNOWN, assign=True)
    return network
"""
    known = objective(find_code(f"{own(source)}:model"))
    fit(known)
    assert known.initial().params["float32"].tolist() == [*(torch.arange(12.0) / 12).tolist(), 1.0, 1.0, 1.0]


def test_a_network_whose_outputs_are_complex_fits_a_loss_of_its_own(own) -> None:
    source = """
import torch
class Net(torch.nn.Linear):
    def __init__(self): super().__init__(4, 3)
    def forward(self, inputs): return torch.fft.fft(super().forward(inputs)).conj()
def loss(outputs, targets): return outputs.abs().mean(1)
"""
    file = own(source)
    network = ModelSpec(find_code(f"{file}:Net"), (4,), 3, "float32", 0)
    assert not fit(Objective(network, find_code(f"{file}:loss"), scores=())).anew


def test_the_gradient_of_a_tied_parameter_is_the_sum_over_its_uses(odd) -> None:
    state, examples = odd.initial(), part()
    update = Gradient()(odd, state, examples, {}, 0)
    network = odd.network(state)
    twin = nn.Parameter(network.first.weight.detach().clone())
    hidden = network.norm(network.first(examples.inputs)) * 3
    outputs = hidden + nn.functional.linear(examples.inputs, twin, network.second.bias)
    nn.functional.cross_entropy(outputs, examples.targets).backward()
    found = views(odd.layout.params, update.direction)["first.weight"]
    torch.testing.assert_close(found, network.first.weight.grad + twin.grad)


def test_no_place_sees_a_later_one_and_every_later_one_sees_it() -> None:
    model = network()
    assert model(TOKENS).shape == (3, 7, 11)
    for place in range(7):
        changed = TOKENS.clone()
        changed[:, place] = (changed[:, place] + 1) % 11
        differ = (model(changed) != model(TOKENS)).any(-1)
        assert not differ[:, :place].any()
        assert differ[:, place:].all()
