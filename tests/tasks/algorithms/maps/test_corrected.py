"""FedProx, SCAFFOLD and elastic averaging by hand, against the papers' loops, and in runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.maps.federated import Elastic, FedProx, Scaffold
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.reduces.tree import reduce_all
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import find_code
from tests.tasks.algorithms.maps.networks import examples, objective
from tests.tasks.sampled import sampled

SQUARE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    def forward(self, inputs):
        return self.weight * inputs
def loss(outputs, targets):
    return ((outputs - targets).square() * inputs_weight(targets)).mean() / 2
def inputs_weight(targets):
    return 1.0 + (targets > 3)
"""


@pytest.fixture
def square(own) -> Objective:
    """(w - target)^2 / 2, and twice that where the target is above 3; from w = 2."""
    path = own(SQUARE)
    return Objective(ModelSpec(find_code(f"{path}:Net"), (1,), 1, "float64", 0), find_code(f"{path}:loss"))


def towards(target: float, count: int = 3) -> Examples:
    return Examples(torch.ones(count, 1).double(), torch.full((count, 1), target).double())


def rounds(algorithm: Algorithm, objective: Objective, parts: list[Examples], count: int) -> list[State]:
    """A run without a store: gives the state after each round."""
    state = objective.initial()
    states = [replace(state, memory=algorithm.apply.init(state.params))]
    carry: list[dict] = [{} for _ in parts]
    for _ in range(count):
        updates = [algorithm.map(objective, states[-1], part, c, 7) for part, c in zip(parts, carry, strict=True)]
        carry = [dict(update.carry) for update in updates]
        states.append(algorithm.apply(states[-1], reduce_all(algorithm.reduce, states[-1], updates)))
    return states


def test_two_rounds_of_two_partitions_by_hand(square: Objective) -> None:
    """From 2 towards 0 and 2.5, two steps with lr 0.5, of losses whose gradients are w - target.

    Round 1, no corrections: 2 -> 1 -> 0.5 and 2 -> 2.25 -> 2.375; c_0 = 1.5, c_1 = -0.375; w = 1.4375, c = 0.5625.
    Round 2, corrected by -0.9375 and 0.9375: 1.4375 -> 1.1875 -> 1.0625 and 1.4375 -> 1.5 -> 1.53125.
    """
    first, second = rounds(
        build_algorithm("scaffold", {"local_steps": 2, "batch_size": None, "lr": 0.5}),
        square,
        [towards(0.0), towards(2.5)],
        2,
    )[1:]
    assert (first.params["float64"].item(), first.memory["control"]["float64"].item()) == (1.4375, 0.5625)
    assert second.params["float64"].item() == (1.0625 + 1.53125) / 2
    # c_0 = 1.5 - 0.5625 + 0.375, c_1 = -0.375 - 0.5625 - 0.09375.
    assert second.memory["control"]["float64"].item() == (1.3125 - 1.03125) / 2


def paper(
    parts: list[tuple[float, float]], lr: float, steps: int, cohorts: list[list[int]], outer: float
) -> float:
    """Algorithm 1 with option II, word by word, on curvature (w - target)^2 / 2, for the cohort of each round."""
    x, c = 2.0, 0.0
    own = [0.0] * len(parts)
    for cohort in cohorts:
        arrived, changes = [], []
        for i in cohort:
            (target, curvature), y = parts[i], x
            for _ in range(steps):
                y -= lr * (curvature * (y - target) - own[i] + c)
            plus = own[i] - c + (x - y) / (steps * lr)
            arrived.append(y - x)
            changes.append(plus - own[i])
            own[i] = plus
        x += outer * sum(arrived) / len(cohort)
        c += len(cohort) / len(parts) * (sum(changes) / len(cohort))
    return x


@pytest.mark.parametrize("outer", [1.0, 0.5])
def test_it_is_the_papers_loop(square: Objective, outer: float) -> None:
    algorithm = build_algorithm("scaffold", {"local_steps": 3, "batch_size": None, "lr": 0.1, "outer_lr": outer})
    parts = [(0.0, 1.0), (2.5, 1.0), (5.0, 2.0)]
    found = rounds(algorithm, square, [towards(target) for target, _ in parts], 8)[-1].params["float64"].item()
    assert found == pytest.approx(paper(parts, 0.1, 3, [[0, 1, 2]] * 8, outer), rel=1e-12)


def test_of_a_cohort_it_is_the_papers_loop(own, train) -> None:
    """A run over ten partitions, four of which take part in a round; w begins at the network's own weight."""
    fields = {"algorithm": "scaffold", "local_steps": 3, "batch_size": None, "lr": 0.1, "outer_lr": 0.5}
    source = """
import torch
def data(partition, partitions):
    return torch.ones(2, 1, dtype=torch.float64), torch.full((2, 1), float(partition), dtype=torch.float64)
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    def forward(self, x):
        return x @ self.w
"""
    where = {"data": f"{own(source)}:data", "model": f"{own(source)}:Network", "loss": "mse", "dtype": "float64"}
    run = train(**where, **fields, partitions=10, cohort=4, rounds=9, held_out=0)
    cohorts = [[*run.round(number).commit.updates] for number in range(1, 10)]
    assert len({*map(tuple, cohorts)}) > 1
    # The squared error of a target has curvature 2.
    wanted = paper([(float(p), 2.0) for p in range(10)], 0.1, 3, cohorts, 0.5)
    assert run.round(9).state.params["float64"].item() == pytest.approx(wanted, rel=1e-12)


def test_it_arrives_where_averaging_stays_away(square: Objective) -> None:
    """Minimum of w^2 / 2 and (w - 5)^2 together: 10/3. Unequal curvatures pull the mean of networks elsewhere."""
    fields = {"local_steps": 20, "batch_size": None, "lr": 0.1}
    parts = [towards(0.0), towards(5.0)]
    corrected = rounds(build_algorithm("scaffold", fields), square, parts, 60)[-1].params["float64"].item()
    plain = rounds(build_algorithm("fed_avg", fields), square, parts, 60)[-1].params["float64"].item()
    assert corrected == pytest.approx(10 / 3, abs=1e-6)
    assert abs(plain - 10 / 3) > 0.2


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_alone_it_is_federated_averaging_to_the_bit(train, model: str) -> None:
    """With one partition c is its c_i, so that nothing is added to its gradients."""
    fields = {"model": model, "partitions": 1, "rounds": 3, "local_steps": 4}
    plain, corrected = (train(algorithm=name, name=name, **fields) for name in ("fed_avg", "scaffold"))
    for number in (1, 2, 3):
        one, two = (run.round(number).state for run in (plain, corrected))
        assert torch.equal(one.params["float32"], two.params["float32"])
        assert two.memory["control"]["float32"].any()


def test_the_variate_is_the_mean_gradient_on_the_way_at_any_rate() -> None:
    what = Objective(ModelSpec("logistic", (1, 4, 4), 3, "float64", 0), "cross_entropy")
    generator = torch.Generator().manual_seed(1)
    part = Examples(torch.randn(40, 1, 4, 4, generator=generator).double(), torch.arange(40) % 3)
    zeros = {"control": {k: torch.zeros_like(p) for k, p in what.initial().params.items()}}
    state = replace(what.initial(), memory=zeros, round=3)
    local = Scaffold(local_epochs=2, batch_size=16, lr=0.2, lr_schedule="step:3:0.5")
    update = local(what, state, part, {}, 7)
    gradients: list[torch.Tensor] = []
    local.walk(what, state, part, 7, lambda name, p: gradients.append(p.grad.reshape(-1).clone()) or 0 * p)
    found = update.carry["control"]["float64"]
    wanted = torch.cat([torch.stack(gradients[n::2]).mean(0) for n in range(2)])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(found, update.extras["control"]["float64"])  # they begin at 0, so this is the change


def test_a_refused_partition_leaves_no_error_in_the_servers_variate(square: Objective) -> None:
    algorithm = build_algorithm("scaffold", {"local_steps": 1, "batch_size": None, "lr": 0.1})
    start = replace(square.initial(), memory=algorithm.apply.init(square.initial().params))
    updates = [algorithm.map(square, start, towards(target), {}, 0) for target in (0.0, 2.5, 5.0)]
    after = algorithm.apply(start, reduce_all(algorithm.reduce, start, updates[:2]))
    assert after.memory["control"]["float64"].item() == pytest.approx((2.0 - 0.5) / 2)


def test_the_servers_variate_is_the_mean_of_all_partitions_own_whoever_takes_part(train) -> None:
    """Karimireddy et al. 2020, Algorithm 1, lines 14 to 17, of partitions that have unequally many examples."""
    fields = {"split": "sizes:power", "partitions": 6, "cohort": 3, "dtype": "float64"}
    run = train(**FIELDS | fields | {"rounds": 8})
    carried = [update.carry["control"]["float64"] for update in run.carried(8).values()]
    server = run.round(8).state.memory["control"]["float64"]
    assert server.norm() > 0.01
    torch.testing.assert_close(server, torch.stack(carried).sum(0) / 6, rtol=0, atol=1e-14)


FIELDS = {"algorithm": "scaffold", "model": "mlp", "partitions": 3, "rounds": 4, "local_steps": 3}
FIELDS |= {"outer_momentum": 0.5}


def test_a_resumed_run_has_the_same_bits(train) -> None:
    whole = train(name="whole", **FIELDS)
    for number in (1, 3, 4):
        resumed = train(name="resumed", **FIELDS | {"rounds": number})
    assert resumed.digest == whole.digest


# What cannot be meant.


def test_what_its_variates_do_not_hold_for_is_no_option() -> None:
    with pytest.raises(
        UsageError, match="algorithm scaffold takes no init, match, momentum, optimizer; it takes "
    ):
        build_algorithm("scaffold", {"optimizer": "Adam", "momentum": 0.9, "match": "weights", "init": "shared"})


def test_an_apply_that_does_not_keep_the_variate_is_named(square: Objective) -> None:
    with pytest.raises(UsageError, match="wrap its apply in KeepExtras"):
        Scaffold(local_steps=1)(square, square.initial(), towards(0.0), {}, 0)


def test_updates_bring_what_is_declared(square: Objective) -> None:
    algorithm = build_algorithm("scaffold", {})
    state = replace(square.initial(), memory=algorithm.apply.init(square.initial().params))
    update: Update = algorithm.map(square, state, towards(0.0), {}, 0)
    assert (tuple(update.carry), tuple(update.extras)) == (algorithm.map.carry, algorithm.map.extras)


def test_two_steps_by_hand(square: Objective) -> None:
    """From 2 towards 0 with lr 0.5 and mu 1: gradients 2 and 1 - 1; the second is 1 towards 0 and 1 back."""
    local = FedProx(local_steps=2, batch_size=None, lr=0.5, mu=1.0)
    update = local(square, square.initial(), towards(0.0), {}, 0)
    assert update.direction["float64"].tolist() == [1.0]
    free = replace(local, mu=0.0)(square, square.initial(), towards(0.0), {}, 0)
    assert free.direction["float64"].tolist() == [1.5]
    # The loss that is told is that of the examples: 4/2 and 1/2.
    assert update.metrics == {"train_loss": 1.25}


def test_it_rests_between_the_start_and_the_minimum(square: Objective) -> None:
    """Of w^2/2 + (mu/2)(w - 2)^2 the minimum is at 2 mu / (1 + mu)."""
    for mu in (0.5, 1.0, 3.0):
        update = FedProx(local_steps=300, batch_size=None, lr=0.1, mu=mu)(
            square, square.initial(), towards(0.0), {}, 0
        )
        assert 2 - update.direction["float64"].item() == pytest.approx(2 * mu / (1 + mu), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "model"),
    sampled(5, [{}, {"optimizer": "AdamW", "lr": 1e-3}, {"clip_norm": 0.5, "momentum": 0.9}], ["mlp", "cnn"]),
)
def test_without_mu_it_has_the_bits_of_federated_averaging(model: str, options: dict[str, object]) -> None:
    objective = Objective(ModelSpec(model, (1, 8, 8), 10, "float32", 0), "cross_entropy")
    examples = Examples(torch.rand(40, 1, 8, 8), torch.arange(40) % 10)
    plain, held, free = (
        build_algorithm(name, {"batch_size": 8, **options, **more})
        for name, more in (("fed_avg", {}), ("fed_prox", {}), ("fed_prox", {"mu": 0.0}))
    )
    assert (free.reduce, free.apply) == (plain.reduce, plain.apply)
    one, two, three = (a.map(objective, objective.initial(), examples, {}, 7) for a in (plain, free, held))
    assert torch.equal(one.direction["float32"], two.direction["float32"])
    assert not torch.equal(one.direction["float32"], three.direction["float32"])


def test_mu_is_a_weight() -> None:
    with pytest.raises(UsageError, match="mu = -1: Input should be greater than or equal to 0"):
        FedProx(local_steps=1, mu=-1)


LOCAL = LocalSteps(local_steps=3, batch_size=16, lr=0.2)


def tied(elasticity: float | None) -> Elastic:
    return Elastic(**vars(LOCAL), elasticity=elasticity)


def mapped(rule: Elastic | LocalSteps, dtype: str, params: Vectors, carry: Vectors | None = None) -> Update:
    what = objective(dtype=dtype)
    state = what.initial()
    state = type(state)(params, state.buffers, state.frozen)
    with pinned(0, threads=1):
        return rule(what, state, examples(dtype=dtype), {"own": carry} if carry else {}, 7)


def test_a_first_turn_is_local_training_and_moves_no_server() -> None:
    start = objective(dtype="float64").initial().params
    first, local = mapped(tied(0.5), "float64", start), mapped(LOCAL, "float64", start)
    assert not first.direction["float64"].any()
    moved = start["float64"] - first.carry["own"]["float64"]
    assert torch.equal(moved, local.direction["float64"])
    assert (first.weight, first.metrics) == (local.weight, local.metrics)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("elasticity", [0.25, 0.5])
def test_both_move_towards_each_other_while_the_partition_trains(dtype: str, elasticity: float) -> None:
    server = objective(dtype=dtype).initial().params
    own = {dtype: (2 * server[dtype] + 1).to(server[dtype].dtype)}
    found = mapped(tied(elasticity), dtype, server, own)
    wide = torch.float64 if dtype == "float64" else torch.float32
    move = (elasticity * (own[dtype].to(wide) - server[dtype].to(wide))).to(server[dtype].dtype)
    assert torch.equal(found.direction[dtype], -move)
    trained = mapped(replace(LOCAL, local_steps=1), dtype, own)  # by the gradient of where it was before the move
    found = mapped(replace(tied(elasticity), local_steps=1), dtype, server, own)
    wanted = own[dtype] - trained.direction[dtype] - move
    torch.testing.assert_close(found.carry["own"][dtype], wanted, rtol=0, atol=8 * torch.finfo(wanted.dtype).eps)


def test_a_turn_is_that_of_the_paper_in_plain_floats() -> None:
    """Zhang et al. 2015, Algorithm 1, on the loss (b - 1)^2: of inputs 0 a linear network gives its bias b.

    From b = 3 with the server at 1, an elasticity of 0.25 and lr 0.1: b moves by 0.5, and its first step is by the
    gradient at 3, which is 4: b = 3 - 0.4 - 0.5 = 2.1. The second is by that at 2.1: b = 2.1 - 0.22 = 1.88.
    """
    what = Objective(ModelSpec("linear", (1,), 1, "float64", 0), "mse")
    part = Examples(torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    server, own = (torch.tensor([0.0, bias], dtype=torch.float64) for bias in (1.0, 3.0))
    state = replace(what.initial(), params={"float64": server})
    elastic = Elastic(local_steps=2, lr=0.1, elasticity=0.25)
    with pinned(0, threads=1):
        update = elastic(what, state, part, {"own": {"float64": own}}, 0)
    assert update.direction["float64"].tolist() == [0.0, -0.5]
    assert update.carry["own"]["float64"].tolist() == pytest.approx([0.0, 1.88], abs=1e-12)


def test_what_nobody_pulls_apart_stays() -> None:
    """What is moved on one side is moved on the other: x and the centre keep their sum."""
    server = objective(dtype="float64").initial().params
    own = {"float64": server["float64"] - 3.0}
    still = Elastic(local_steps=1, batch_size=None, lr=1e-300, elasticity=0.3)
    found = mapped(still, "float64", server, own)
    after = found.carry["own"]["float64"] + server["float64"] - found.direction["float64"]
    torch.testing.assert_close(after, own["float64"] + server["float64"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("given", "partitions", "wanted"), [(None, 3, 0.9 / 3), (None, 1, 0.9), (0.2, 3, 0.2)])
def test_its_elasticity_is_by_the_partitions_unless_it_is_given(given, partitions, wanted) -> None:
    rule = tied(given).bound(objective(dtype="float32"), Partitions(Digits(), Split(partitions)))
    assert rule.elasticity == pytest.approx(wanted, rel=1e-15)
