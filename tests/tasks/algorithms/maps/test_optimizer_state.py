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
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.algorithms.maps.federated import Elastic
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.maps.optimizers import Slot, find_slots
from roundweave.tasks.algorithms.reduces.matched import Matched
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.algorithms.reduces.tree import reduce_all
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import Objective
from tests.rows import but_first
from tests.tasks.algorithms.maps.networks import distance, examples, looped, objective, objective_of

CARRIED = LocalSteps(local_steps=4, batch_size=16, lr=0.01, optimizer_state="carried")

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "AdamW": {"amsgrad": True},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "ASGD": {"t0": 5},
    "RMSprop": {"momentum": 0.9, "centered": True},
} | {name: {} for name in ("Adam", "Adamax", "Adadelta", "NAdam", "RAdam", "Rprop")}
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


def apart(local: LocalSteps, optimizer: Any, what: Objective, part: Examples) -> float:
    """The largest difference of a parameter between three rounds and one loop of plain torch."""
    network = looped(what, part, optimizer, local.local_steps or 0, local.batch_size, range(3))
    state, _ = rounds(local, what, part)
    return distance(what, state.params, {k: torch.zeros_like(v) for k, v in state.params.items()}, network)


@pytest.mark.parametrize(("dtype", "model"), but_first([("float64", "mlp")], [("float32", "logistic")]))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rounds_are_one_loop_of_torch(name: str, dtype: str, model: str) -> None:
    local = replace(CARRIED, optimizer=name, optimizer_options=OPTIMIZERS[name])
    optimizer = lambda p: getattr(torch.optim, name)(p, lr=0.01, **OPTIMIZERS[name])  # noqa: E731
    found = apart(local, optimizer, objective(model, dtype), examples(dtype=dtype))
    assert found < {"float32": 2e-5, "float64": 1e-12}[dtype]


def test_a_restarted_optimizer_is_another_one() -> None:
    local = replace(CARRIED, optimizer="AdamW", optimizer_state="fresh")
    optimizer = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731
    assert apart(local, optimizer, objective(dtype="float64"), examples(dtype="float64")) > 1e-3


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
        self.layer, self.idle, self.gated = torch.nn.Linear(16, 3), torch.nn.Linear(2, 2), torch.nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
    def forward(self, inputs):
        self.calls += 1
        more = self.late(inputs.flatten(1)) if self.calls > 6 else 0
        return self.layer(inputs.flatten(1)) * self.scale + more + self.gated(inputs.flatten(1)) * (self.calls > 6)
"""


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "Rprop", "SGD"])
def test_parameters_get_a_state_when_they_get_a_gradient(own, name: str) -> None:
    """One is a single number, some have none before round 2, or zero, and two never have one."""
    what, options = objective_of(own(SCALED), "float64"), OPTIMIZERS[name]
    options = {"momentum": 0.9, "dampening": 0.5} if name == "SGD" else options
    local = replace(CARRIED, optimizer=name, optimizer_options=options)
    optimizer = lambda p: getattr(torch.optim, name)(p, lr=0.01, **options)  # noqa: E731
    assert apart(local, optimizer, what, examples(dtype="float64")) < 1e-12


def test_elastic_averaging_carries_both() -> None:
    what, part = objective(), examples()
    local = Elastic(local_steps=4, batch_size=16, optimizer="Adam", lr=0.01, optimizer_state="carried")
    bound = local.bound(what, SimpleNamespace(split=SimpleNamespace(partitions=1)))
    first = bound(what, what.initial(), part, {}, 0)
    assert bound.carry == tuple(first.carry) == ("own", "step", "exp_avg", "exp_avg_sq")
    assert bound(what, what.initial(), part, first.carry, 0).carry["step"]["float32"].unique().tolist() == [8.0]


def test_plain_sgd_has_nothing_to_carry() -> None:
    assert CARRIED.bound(objective(), None).carry == ()
    assert replace(CARRIED, momentum=0.9).bound(objective(), None).carry == ("momentum_buffer",)


# What cannot be carried.


class Counting(torch.optim.SGD):
    """SGD that keeps `kept` for each parameter, `group` in its group, and how often `counts` says to count."""

    kept: Any = 0
    group = False
    count = counts = 0

    def step(self, closure: Any = None) -> None:
        super().step()
        self.count += self.counts
        for group in self.param_groups:
            group["t"] = group["t"] + 1 if self.group else 0
            for parameter in group["params"]:
                self.state[parameter]["kept"] = self.kept


def slots_of(
    kept: Any, dtype: torch.dtype = torch.float32, group: bool = False, counts: int = 0
) -> tuple[Slot, ...]:
    """What is found of such an optimizer of one parameter."""
    trained = {"w": nn.Parameter(torch.ones(2, dtype=dtype))}
    optimizer = Counting(trained.values(), lr=0.1)
    optimizer.param_groups[0]["t"], optimizer.kept, optimizer.group = 0, kept, group
    optimizer.count, optimizer.counts = 0, counts
    return find_slots(optimizer, trained)


@pytest.mark.parametrize(
    ("kept", "dtype", "slot"),
    [
        (3, torch.float32, Slot("kept", "int")),
        (0.5, torch.float64, Slot("kept", "float")),
        (torch.tensor(7), torch.float32, Slot("kept", "int64")),
    ],
)
def test_numbers_are_kept_where_no_bit_is_lost(kept: Any, dtype: torch.dtype, slot: Slot) -> None:
    assert slots_of(kept, dtype) == (slot,)
    value = slot.value(slot.filled(kept, torch.ones(2, dtype=dtype)))
    assert (type(value), value) == (type(kept), kept)
    with pytest.raises(UsageError, match=r"step .* is 16777217\.0, which torch\.float32 rounds"):
        Slot("step", "int").filled(2**24 + 1, torch.ones(2))


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"kept": 0.5}, "kept of w as a number of type float, which float32 rounds"),
        ({"kept": 3, "dtype": torch.float16}, "kept of w as a number of type int, which float16 rounds"),
        ({"kept": None}, "kept of w as NoneType, where the parameter is"),
        ({"kept": torch.zeros(2, dtype=torch.float64)}, "kept of w in float64, not in float32"),
        ({"kept": 3, "group": True}, "keeps something that is of no parameter; only optimizer_state = fresh"),
        ({"kept": 3, "counts": 1}, "keeps something that is of no parameter; only optimizer_state = fresh"),
    ],
)
def test_what_would_lose_bits_is_refused(kept: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        slots_of(**kept)


class Own(LocalSteps):
    carry = ("seen", "moved")


class OfOwnOrder(Own):
    unit_slots = ()


def test_a_map_of_ones_own_says_what_it_carries_and_which_slots_have_the_order_of_units() -> None:
    with pytest.raises(UsageError, match="map Own has a carry without momentum_buffer of its optimizer"):
        Own(local_steps=1, momentum=0.9, optimizer_state="carried").bound(objective(), None)
    with pytest.raises(UsageError, match="call its `bound` first"):
        replace(CARRIED, optimizer="AdamW")(objective(), objective().initial(), examples(), {}, 0)
    says = r"Own goes by seen, moved .*; leave one out, or let .* say in unit_slots"
    with pytest.raises(UsageError, match=says):
        Algorithm(Own(), Matched(), Sgd())
    assert Algorithm(OfOwnOrder(), Matched(), Sgd()).map.carry == ("seen", "moved")
    assert build_algorithm("afl", {}, {"reduce": "matched"}).map.carry == ("weight",)
