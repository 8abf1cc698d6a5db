"""From a state to a network and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from roundweave.storage.errors import ModelError
from roundweave.storage.values.state import layout_of
from roundweave.storage.values.tensors import views
from roundweave.tasks.algorithms.maps.gradient import Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.data.datasets import Dataset
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.matching import check_function, find_units
from roundweave.tasks.networks.objective import ModelSpec, Objective, buffers_of
from roundweave.tasks.networks.reference import MODELS, Gpt
from roundweave.tasks.networks.scores import mean_squared_error
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.numerics.pinning import pinned
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


def test_tied_tensors_stay_tied(odd) -> None:
    network = odd.network(odd.initial())
    assert network.first.weight is network.second.weight
    assert network.shared is network.norm.running_mean
    assert layout_of(network) == odd.layout


def test_two_networks_of_a_state_share_nothing(odd) -> None:
    state = odd.initial()
    one, two = odd.network(state), odd.network(state)
    for network in (one, two):
        for tensor in [*network.parameters(), *network.buffers()]:
            tensor.data.add_(1)
    assert torch.equal(one.first.weight, two.first.weight)
    assert torch.equal(odd.initial().params["float32"], state.params["float32"])


@pytest.mark.parametrize("algorithm", [Gradient(), LocalSteps(local_epochs=1, batch_size=4)])
def test_training_never_changes_the_skeleton(odd, algorithm) -> None:
    before = {name: tensor.clone() for name, tensor in odd.initial().named(odd.layout).items()}
    one, two = (algorithm(odd, odd.initial(), part(), {}, 1) for _ in range(2))
    after = odd.initial().named(odd.layout)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert torch.equal(one.direction["float32"], two.direction["float32"])
    assert odd.network(odd.initial()).scale.tolist() == [2, 2, 2]


def test_batchnorm_statistics_are_sent_back(odd) -> None:
    update = LocalSteps(local_steps=3, batch_size=5)(odd, odd.initial(), part(), {}, 1)
    buffers = views(odd.layout.buffers, update.buffers)
    assert buffers["norm.num_batches_tracked"].item() == 3
    assert buffers["shared"].any()


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


def test_the_numbers_of_a_network_come_back_as_vectors(odd) -> None:
    network = odd.network(odd.initial())
    network.norm.running_var.fill_(7)
    assert views(odd.layout.buffers, buffers_of(odd, network, odd.initial()))["norm.running_var"].tolist() == [
        7,
        7,
        7,
    ]


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


def test_integer_buffers_keep_their_type_in_any_dtype() -> None:
    what = objective("cnn", inputs=(1, 8, 8), dtype="float64")
    assert what.initial().buffers["int64"].tolist() == [0, 0]


def test_squared_errors_by_hand() -> None:
    assert mean_squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])).item() == (1 + 4) / 2
    assert mean_squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]])).item() == 2.0
    with pytest.raises(ModelError, match=r"outputs of shape \(2, 2\) for targets of \(2,\)"):
        mean_squared_error(torch.zeros(2, 2), torch.zeros(2))


# Networks that cannot be built.

BROKEN = """
import torch
def not_a_network(): return 3
def lazy(): return torch.nn.LazyLinear(3)
def no_parameter(): return torch.nn.Flatten()
def frozen():
    network = torch.nn.Linear(4, 3)
    return network.requires_grad_(False)
def fails(): raise OSError("no such file: weights.pt")
def narrow(): return torch.nn.Linear(4, 2)
def other_inputs(): return torch.nn.Linear(5, 3)
def apart(outputs, targets): return outputs - 1
def number(outputs, targets): return 0.5
class Fixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
    def forward(self, inputs):
        return self.layer(inputs)
class Stored(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.doubled = self.layer.weight * 2
    def forward(self, inputs):
        return self.layer(inputs)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("not_a_network", r"must return a torch\.nn\.Module, not int"),
        ("lazy", "has lazy parameters; run it once on an example before returning it"),
        ("no_parameter", "has no parameter to train"),
        ("frozen", "has no parameter to train"),
        ("fails", "no such file"),
    ],
)
def test_what_is_no_network_to_train_is_refused_by_name(own, name: str, reason: str) -> None:
    path = own(BROKEN)
    with pytest.raises(ModelError, match=rf"model {path}:{name}.* {reason}"):
        objective(find_code(f"{path}:{name}")).initial()


@pytest.mark.parametrize(
    ("model", "options"),
    [("mlp", {"width": 3}), ("mlp", {"dropout": 1.5}), ("mlp", {"hidden": -1}), ("cnn", {})],
    ids=str,
)
def test_options_that_a_network_does_not_take_are_refused(model: str, options) -> None:
    with pytest.raises(ModelError, match=r"model mlp with options|the cnn reads images"):
        objective(model, **options).initial()


# Networks that do not fit the examples.


class Given:
    """A source of the examples above."""

    partitioned = False

    def load(self, partition: int, partitions: int) -> Dataset:
        return Dataset(part())


def fit(what: Objective) -> Objective:
    partitions = Partitions(Given(), Split(2))
    return check_fit(what, partitions, partitions.describe(0), 0)


@pytest.mark.parametrize("name", ["Fixed", "Stored"])
def test_a_network_that_fits_passes(own, name: str) -> None:
    fit(objective("mlp"))
    fit(objective(find_code(f"{own(BROKEN)}:{name}")))


def test_a_network_that_keeps_what_no_state_holds_is_refused(odd) -> None:
    with pytest.raises(ModelError, match="a second forward pass on the same examples gives another output 0"):
        fit(odd)


@pytest.mark.parametrize(
    ("name", "loss", "reason"),
    [
        ("narrow", "cross_entropy", r"on inputs of shape \(2, 4\) float32 gives 2 outputs, but labels go up to 2"),
        ("other_inputs", "cross_entropy", "fails with RuntimeError: "),
        ("narrow", "mse", r"outputs of shape \(2, 2\) for targets of \(2,\)"),
        ("narrow", "apart", "the loss must be a single number"),
        ("narrow", "number", "the loss must be a single number"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(own, name: str, loss: str, reason: str) -> None:
    path = own(BROKEN)
    own_loss = loss if loss in ("mse", "cross_entropy") else find_code(f"{path}:{loss}")
    what = Objective(ModelSpec(find_code(f"{path}:{name}"), (4,), 3, "float32", 0), own_loss)
    with pytest.raises(ModelError, match=reason):
        fit(what)


def test_checking_the_fit_changes_nothing(own) -> None:
    odd = objective(find_code(f"{own(ODD)}:Still"))
    before = odd.initial().buffers["float32"].clone()
    state = torch.random.get_rng_state()
    fit(odd)
    assert torch.equal(odd.initial().buffers["float32"], before)
    assert torch.equal(torch.random.get_rng_state(), state)


class Tokens:
    """Two sequences of five tokens, of which the greatest is 64."""

    partitioned = False

    def load(self, partition: int, partitions: int) -> Dataset:
        tokens = torch.arange(10).reshape(2, 5) + 55
        return Dataset(Examples(tokens - 1, tokens))


@pytest.mark.parametrize(
    ("outputs", "says"), [(65, None), (64, r"\(2, 5\) int64 gives 64 outputs, but labels go up to 64")]
)
def test_a_network_of_sequences_is_checked_too(outputs: int, says: str | None) -> None:
    partitions = Partitions(Tokens(), Split(1))
    found = partitions.describe(0)
    spec = ModelSpec("gpt", found.inputs, outputs, "float32", 0, '{"vocabulary": 65}')
    if says is None:
        check_fit(Objective(spec, "cross_entropy"), partitions, found, 0)
        return
    with pytest.raises(ModelError, match=says):
        check_fit(Objective(spec, "cross_entropy"), partitions, found, 0)


def test_scores_are_checked_with_the_network() -> None:
    partitions = Partitions(Tokens(), Split(1))
    what = Objective(ModelSpec("gpt", (5,), 65, "float32", 0), "cross_entropy")
    described = partitions.describe(0)
    assert check_fit(what, partitions, described, 0).scores == ("token_accuracy",)
    assert check_fit(replace(what, scores=()), partitions, described, 0).scores == ()
    with pytest.raises(ModelError, match=r"score accuracy needs outputs .* token_accuracy scores sequences"):
        check_fit(replace(what, scores=("token_accuracy", "accuracy")), partitions, described, 0)


def test_one_output_an_example_is_none_for_a_sequence(own) -> None:
    path = own(
        "import torch\ndef model():\n    return torch.nn.Sequential(torch.nn.Embedding(65, 3), torch.nn.Flatten())"
    )
    partitions = Partitions(Tokens(), Split(1))
    spec = ModelSpec(find_code(f"{path}:model"), (5,), 65, "float32", 0)
    says = r"gives outputs of shape \(2, 15\), but one for each class of each label is \(2, 5, 65\)"
    with pytest.raises(ModelError, match=says):
        check_fit(Objective(spec, "cross_entropy"), partitions, partitions.describe(0), 0)


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
    path = own(
        f"import torch\nfrom torch import nn\ndef f():\n    net = nn.Linear(4, 2)\n    {line}\n    return net"
    )
    with pytest.raises(ModelError, match=says):
        ModelSpec(find_code(f"{path}:f"), (4,), 2, "float32", 0).build()


def test_a_sparse_buffer_that_is_not_kept_is_no_matter(own) -> None:
    source = """
import torch
def f():
    net = torch.nn.Linear(4, 2)
    net.register_buffer("graph", torch.eye(3).to_sparse(), persistent=False)
    return net
"""
    network = ModelSpec(find_code(f"{own(source)}:f"), (4,), 2, "float32", 0).build()
    assert network.graph.is_sparse


TOKENS = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(0))


def sequences(**options: int) -> Objective:
    small = {"width": 12, "depth": 2, "heads": 3}
    return Objective(ModelSpec("gpt", (7,), 11, "float32", 0, json.dumps(small | options)), "cross_entropy")


def network() -> Gpt:
    return sequences().model.build().double().eval()


def test_it_gives_logits_for_each_place() -> None:
    assert network()(TOKENS).shape == (3, 7, 11)
    assert network()(TOKENS[:, :4]).shape == (3, 4, 11)


@pytest.mark.parametrize("place", range(7))
def test_no_place_sees_a_later_one_and_every_later_one_sees_it(place: int) -> None:
    model = network()
    changed = TOKENS.clone()
    changed[:, place] = (changed[:, place] + 1) % 11
    differ = (model(changed) != model(TOKENS)).any(-1)
    assert not differ[:, :place].any()
    assert differ[:, place:].all()


def test_a_shorter_sequence_gives_the_same_logits() -> None:
    torch.testing.assert_close(network()(TOKENS[:, :3]), network()(TOKENS)[:, :3])


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


def test_it_trains_with_deterministic_operations_to_the_same_bits() -> None:
    what, examples = sequences(), Examples(TOKENS, (3 * TOKENS + 1) % 11)
    train = LocalSteps(local_steps=60, batch_size=2, optimizer="Adam", lr=0.03)
    with pinned(0, threads=1):
        first, second = (train(what, what.initial(), examples, {}, 1) for _ in range(2))
        before = Gradient()(what, what.initial(), examples, {}, 0).metrics["train_loss"]
    assert torch.equal(first.direction["float32"], second.direction["float32"])
    assert first.metrics["train_loss"] < 0.6 * before
    assert before == pytest.approx(2.398, abs=0.05), "the loss of a guess among 11"


@pytest.mark.parametrize(
    ("inputs", "options", "says"),
    [
        ((1, 8, 8), {}, r"the gpt reads sequences of tokens of shape \(time,\), not \(1, 8, 8\)"),
        ((7,), {"heads": 5}, "the gpt's width 12 cannot be divided among 5 heads"),
    ],
)
def test_what_does_not_fit_is_refused(inputs, options, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Gpt(inputs, 11, **{"width": 12, **options})


def test_tokens_may_be_more_than_classes() -> None:
    assert Gpt((7,), 2, width=8, heads=2, vocabulary=11)(TOKENS).shape == (3, 7, 2)


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
