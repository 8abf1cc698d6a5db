"""What a partition carries of its optimizer: rounds of local training are then one long one, as in torch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State
from roundweave.storage.values.tensors import Vectors, views
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.algorithms.maps.backprop import batches
from roundweave.tasks.algorithms.maps.federated import Elastic
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.maps.optimizers import Slot, find_slots
from roundweave.tasks.algorithms.reduces.matched import Matched
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.algorithms.reduces.tree import reduce_all
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from tests.tasks.algorithms.maps.networks import examples, objective
from tests.tasks.sampled import sampled

CARRIED = LocalSteps(local_steps=4, batch_size=16, lr=0.01, optimizer_state="carried")

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "AdamW": {"amsgrad": True},
    "Adam": {},
    "Adamax": {},
    "Adadelta": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "ASGD": {"t0": 5},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
}
"""All optimizers of torch that can be carried, with options that give them more to keep."""


def rounds(local: LocalSteps, what: Objective, part: Examples, count: int = 3) -> tuple[State, dict[str, Vectors]]:
    """So many rounds of one partition with `fed_avg`, whose mean network is then that partition's."""
    algorithm = Algorithm(local, Mean(), Sgd(lr=1.0)).bound(what, None)
    state, carry = what.initial(), {}
    for number in range(count):
        update = algorithm.map(what, state, part, carry, number)
        carry = dict(update.carry)
        state = algorithm.apply(state, reduce_all(algorithm.reduce, state, [update]))
    return state, carry


def looped(local: LocalSteps, optimizer: Any, what: Objective, part: Examples, count: int = 3) -> nn.Module:
    """The same as one loop of plain torch."""
    network = what.network(what.initial())
    optimizer = optimizer([p for p in network.parameters() if p.requires_grad])
    for number in range(count):
        for batch in batches(part, local.batch_size, local.local_steps or 0, seed=number):
            optimizer.zero_grad()
            what.value(network(batch.inputs), batch.targets).backward()
            optimizer.step()
    return network


def distance(what: Objective, state: State, network: nn.Module) -> float:
    """The largest difference of a parameter between a state and a network."""
    found = views(what.layout.params, state.params)
    return max((found[name] - p.detach()).abs().max().item() for name, p in network.named_parameters())


@pytest.mark.parametrize(
    ("name", "dtype", "model"), sampled(12, OPTIMIZERS, {"float32": 2e-5, "float64": 1e-12}, ["logistic", "mlp"])
)
def test_rounds_are_one_loop_of_torch(name: str, dtype: str, model: str) -> None:
    what, part = objective(model, dtype), examples(dtype=dtype)
    local = replace(CARRIED, optimizer=name, optimizer_options=OPTIMIZERS[name])
    state, _ = rounds(local, what, part)
    network = looped(local, lambda p: getattr(torch.optim, name)(p, lr=0.01, **OPTIMIZERS[name]), what, part)
    assert distance(what, state, network) < {"float32": 2e-5, "float64": 1e-12}[dtype]


def test_a_restarted_optimizer_is_another_one() -> None:
    what, part = objective(dtype="float64"), examples(dtype="float64")
    local = replace(CARRIED, optimizer="AdamW", optimizer_state="fresh")
    network = looped(local, lambda p: torch.optim.AdamW(p, lr=0.01), what, part)
    assert distance(what, rounds(local, what, part)[0], network) > 1e-3


def test_a_number_fills_the_place_of_each_parameter() -> None:
    what = objective()
    _, carry = rounds(replace(CARRIED, optimizer="AdamW"), what, examples())
    assert list(carry) == ["step", "exp_avg", "exp_avg_sq"]
    assert torch.equal(carry["step"]["float32"], torch.full_like(what.initial().params["float32"], 12.0))


SCALED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.late = torch.nn.Parameter(torch.ones(())), torch.nn.Linear(16, 3)
        self.layer, self.idle = torch.nn.Linear(16, 3), torch.nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
    def forward(self, inputs):
        self.calls += 1
        more = self.late(inputs.flatten(1)) if self.calls > 6 else 0
        return self.layer(inputs.flatten(1)) * self.scale + more
"""


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "Rprop", "SGD"])
def test_parameters_get_a_state_when_they_get_a_gradient(own, name: str) -> None:
    """One is a single number, one has no gradient before round 2, and two never have one."""
    from roundweave.tasks.own_code.code import find_code

    spec = ModelSpec(find_code(f"{own(SCALED)}:Net"), (1, 4, 4), 3, "float64", 0)
    what, part = Objective(spec, "cross_entropy"), examples(dtype="float64")
    local = replace(CARRIED, optimizer=name, optimizer_options=OPTIMIZERS.get(name))
    options = {"lr": 0.01, **OPTIMIZERS[name]}
    network = looped(local, lambda p: getattr(torch.optim, name)(p, **options), what, part)
    buffers_kept = rounds(local, what, part)
    assert distance(what, buffers_kept[0], network) < 1e-12


def test_elastic_averaging_carries_both() -> None:
    what, part = objective(), examples()
    local = Elastic(local_steps=4, batch_size=16, optimizer="Adam", lr=0.01, optimizer_state="carried")
    bound = local.bound(what, SimpleNamespace(split=SimpleNamespace(partitions=1)))
    first = bound(what, what.initial(), part, {}, 0)
    assert bound.carry == tuple(first.carry) == ("own", "step", "exp_avg", "exp_avg_sq")
    assert bound(what, what.initial(), part, first.carry, 0).carry["step"]["float32"].unique().tolist() == [8.0]


def test_a_map_keeps_what_it_is_given() -> None:
    what, part = objective(), examples()
    local = replace(CARRIED, optimizer="AdamW").bound(what, None)
    carry = local(what, what.initial(), part, {}, 0).carry
    before = {slot: vectors["float32"].clone() for slot, vectors in carry.items()}
    one, other = (local(what, what.initial(), part, carry, 1) for _ in range(2))
    assert all(torch.equal(carry[slot]["float32"], before[slot]) for slot in before)
    assert torch.equal(one.direction["float32"], other.direction["float32"])


def test_plain_sgd_has_nothing_to_carry() -> None:
    assert CARRIED.bound(objective(), None).carry == ()
    assert replace(CARRIED, momentum=0.9).bound(objective(), None).carry == ("momentum_buffer",)


# What cannot be carried.


@pytest.mark.parametrize(
    ("name", "dtype", "says"),
    [
        ("Adafactor", "float32", r"row_var of fc1.weight as \(256, 1\), where the parameter is \(256, 16\)"),
        ("AdamW", "bfloat16", "step of fc1.weight as a number of type float32, which bfloat16 rounds"),
    ],
)
def test_a_state_that_is_not_of_slots_is_refused_before_round_1(name: str, dtype: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"^optimizer {name} keeps {says}; only optimizer_state = fresh "):
        replace(CARRIED, optimizer=name).bound(objective(dtype=dtype), None)


class Counting(torch.optim.SGD):
    """SGD that keeps `kept` for each parameter, and `group` in its group."""

    kept: Any = 0
    group = False

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            group["t"] = group.get("t", 0) + 1 if self.group else 0
            for parameter in group["params"]:
                self.state[parameter]["kept"] = self.kept


@pytest.mark.parametrize(
    ("kept", "dtype", "says"),
    [
        (3, torch.float32, Slot("kept", "int")),
        (0.5, torch.float64, Slot("kept", "float")),
        (0.5, torch.float32, "kept of w as a number of type float, which float32 rounds"),
        (3, torch.float16, "kept of w as a number of type int, which float16 rounds"),
        (None, torch.float32, "kept of w as NoneType, where the parameter is"),
        (torch.zeros(2, dtype=torch.float64), torch.float32, "kept of w in float64, not in float32"),
        (torch.tensor(7), torch.float32, Slot("kept", "int64")),
    ],
)
def test_numbers_are_kept_where_no_bit_is_lost(kept: Any, dtype: torch.dtype, says: Any) -> None:
    trained = {"w": nn.Parameter(torch.ones(2, dtype=dtype))}
    optimizer = Counting(trained.values(), lr=0.1)
    optimizer.param_groups[0]["t"], optimizer.kept = 0, kept
    if isinstance(says, Slot):
        (slot,) = find_slots(optimizer, trained)
        assert slot == says
        value = slot.value(slot.filled(kept, trained["w"].detach()))
        assert (type(value), value) == (type(kept), kept)
    else:
        with pytest.raises(UsageError, match=says):
            find_slots(optimizer, trained)


def test_what_groups_keep_is_refused() -> None:
    trained = {"w": nn.Parameter(torch.ones(2))}
    optimizer = Counting(trained.values(), lr=0.1)
    optimizer.param_groups[0]["t"], optimizer.group = 0, True
    with pytest.raises(UsageError, match="keeps something that is of no parameter; only optimizer_state = fresh"):
        find_slots(optimizer, trained)


def test_a_whole_number_that_would_be_rounded_is_refused() -> None:
    with pytest.raises(UsageError, match=r"step .* is 16777217\.0, which torch\.float32 rounds"):
        Slot("step", "int").filled(2**24 + 1, torch.ones(2))


def test_a_map_of_ones_own_that_carries_something_else_does_not_forget() -> None:
    class Own(LocalSteps):
        carry = ("g",)

    local = Own(local_steps=1, momentum=0.9, optimizer_state="carried")
    with pytest.raises(UsageError, match="map Own has a carry without momentum_buffer of its optimizer"):
        local.bound(objective(), None)


def test_a_map_that_is_not_bound_does_not_forget() -> None:
    with pytest.raises(UsageError, match="call its `bound` first"):
        replace(CARRIED, optimizer="AdamW")(objective(), objective().initial(), examples(), {}, 0)


def test_a_reduce_that_orders_units_anew_is_refused() -> None:
    matched = build_algorithm("matched", {"optimizer": "Adam", "optimizer_state": "carried"})
    says = "map LocalSteps goes by step, exp_avg, exp_avg_sq in the order of units, which reduce Matched changes"
    with pytest.raises(UsageError, match=says):
        replace(matched, map=matched.map.bound(objective(), None))
    slots = {"scaffold": "control", "fed_dyn": "drift", "mime_lite": "momentum", "easgd": "own", "d_psgd": "own"}
    for name, slot in slots.items():
        with pytest.raises(UsageError, match=f"goes by {slot}.* in the order of units"):
            build_algorithm(name, {}, {"reduce": "matched"})
    assert build_algorithm("afl", {}, {"reduce": "matched"}).map.carry == ("weight",)


def test_a_map_of_ones_own_says_which_of_its_slots_have_the_order_of_units() -> None:
    class Own(LocalSteps):
        carry = ("seen", "moved")

    class Counting(Own):
        unit_slots = ()

    with pytest.raises(
        UsageError, match=r"Own goes by seen, moved .*; leave one out, or let .* say in unit_slots"
    ):
        Algorithm(Own(), Matched(), Sgd())
    assert Algorithm(Counting(), Matched(), Sgd()).map.carry == ("seen", "moved")
