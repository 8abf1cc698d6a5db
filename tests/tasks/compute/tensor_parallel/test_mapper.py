"""A group computes what one machine does, up to rounding, whatever it shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import psutil
import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.optimizers import Adam, KeepExtras
from roundweave.tasks.algorithms.maps.federated import FedProx
from roundweave.tasks.algorithms.maps.gradient import Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.algorithms.reduces.robust import Krum, Median
from roundweave.tasks.algorithms.reduces.tree import reduce_all
from roundweave.tasks.compute.compute import Compute, whole_part
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.compute.tensor_parallel.layers import _skeleton
from roundweave.tasks.networks.objective import ModelSpec
from tests.tasks.compute.tensor_parallel.networks import (
    examples_of,
    mapped,
    objective_of,
    off,
    shares_of,
    tensor_parallel_of,
)
from tests.tasks.sampled import sampled

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "chain": ("chain", {"widths": [16, 16]}),
    "odd": ("chain", {"widths": [13, 7, 9]}),
    "wide": ("chain", {"widths": [31, 6, 17, 5]}),
    "alexnet": ("alexnet", {}),
    "norm": ("alexnet", {"norm": True}),
    "gpt": ("gpt", {"width": 16, "heads": 4, "depth": 2}),
    "encoder": ("encoder", {}),
    "encoder first": ("encoder", {"norm_first": True}),
    "decoder": ("decoder", {}),
}
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
STEPS = LocalSteps(local_steps=20, batch_size=7, lr=0.05)


@pytest.mark.parametrize(("case", "ranks", "dtype"), sampled(7, CASES, [1, 2, 3, 4], TOLERANCE))
def test_ranks_take_the_steps_of_one_machine(case: str, ranks: int, dtype: str) -> None:
    model, options = CASES[case]
    objective = objective_of(model, dtype, **options)
    assert off(objective, STEPS, ranks) < TOLERANCE[dtype]


@pytest.mark.parametrize(("ranks", "dtype"), sampled(5, [2, 3, 4], TOLERANCE))
def test_a_hybrid_takes_the_steps_of_one_machine(ranks: int, dtype: str) -> None:
    objective = objective_of("alexnet", dtype)
    assert shares_of(objective, ranks, hybrid=True).joins == "8"
    assert off(objective, STEPS, ranks, hybrid=True) < TOLERANCE[dtype]


def test_a_batch_of_a_hybrid_may_have_fewer_examples_than_there_are_ranks() -> None:
    objective = objective_of("alexnet")
    steps = replace(STEPS, batch_size=2)
    assert off(objective, steps, 3, hybrid=True) < 1e-12


OPTIMIZERS = {
    "momentum": replace(STEPS, momentum=0.9, nesterov=True),
    "decay": replace(STEPS, optimizer_options={"weight_decay": 0.1}),
    "AdamW": replace(STEPS, optimizer="AdamW", lr=0.001),
    "gradient": Gradient(batch_size=9),
}


@pytest.mark.parametrize(("optimizer", "hybrid"), sampled(3, OPTIMIZERS, [False, True]))
def test_optimizers_that_treat_each_element_for_itself_see_no_difference(optimizer: str, hybrid: bool) -> None:
    objective, inner = objective_of("alexnet"), OPTIMIZERS[optimizer]
    assert off(objective, inner, 2, hybrid=hybrid) < 1e-12


def test_batches_that_are_accumulated_make_no_difference() -> None:
    objective = objective_of("chain", widths=[9, 11])
    assert off(objective, replace(STEPS, batch_size=3, accumulate=3), 2) < 1e-12


def test_what_partitions_carry_of_their_optimizers_is_shared_like_the_network() -> None:
    objective = objective_of("chain", widths=[9, 11])
    local = replace(STEPS, optimizer="AdamW", lr=0.001, optimizer_state="carried").bound(objective, None)
    carries = []
    for mapper in (Mapper(local), tensor_parallel_of(objective, local, 3)):
        carry: Mapping[str, Vectors] = {}
        for seed in (1, 2):
            (update,) = mapper(objective, objective.initial(), [(examples_of(objective), carry, seed)])
            carry = update.carry
        carries.append(carry)
    assert carries[0]["step"]["float64"].unique().tolist() == [40.0]
    for slot in local.carry:
        assert (carries[0][slot]["float64"] - carries[1][slot]["float64"]).abs().max() < 1e-12


def test_an_outer_optimizer_sees_no_difference() -> None:
    objective = objective_of("chain", widths=[9, 11])
    reached = []
    algorithm = Algorithm(STEPS, Mean(), Adam(lr=0.01))
    for map in (STEPS, tensor_parallel_of(objective, STEPS, 3)):
        state = replace(objective.initial(), memory=algorithm.apply.init(objective.initial().params))
        for number in range(3):
            update = reduce_all(algorithm.reduce, state, [mapped(map, objective, number, state)])
            state = algorithm.apply(state, update)
        reached.append(state.params["float64"])
    assert (reached[0] - reached[1]).abs().max() < 1e-10  # it divides by the root of a mean of squares


def test_scores_are_those_of_the_whole_network() -> None:
    """In evaluation torch would compute an encoder layer by one operation, which reads weights past the layers."""
    objective = objective_of("encoder")
    examples = examples_of(objective)

    def outputs(objective, state: State) -> torch.Tensor:
        return objective.network(state).eval()(examples.inputs)

    group = tensor_parallel_of(objective, STEPS, 2)
    with torch.no_grad():
        found, wanted = (
            mapper.scored(objective, objective.initial(), outputs) for mapper in (group, Mapper(STEPS))
        )
    assert (found - wanted).abs().max() < 1e-12


def test_a_partition_with_initial_weights_of_its_own_has_them_on_ranks_too() -> None:
    objective, inner = objective_of("chain"), replace(STEPS, init="per-partition")
    assert off(objective, inner, 2) < 1e-12


def test_a_second_run_has_the_same_bits() -> None:
    objective = objective_of("alexnet", "float32", dropout=0.4)
    one, other = (mapped(tensor_parallel_of(objective, STEPS, 3), objective) for _ in range(2))
    assert torch.equal(one.direction["float32"], other.direction["float32"])


@pytest.mark.parametrize(
    ("map", "says"),
    [
        (FedProx(), r"FedProx\(\)"),
        (replace(STEPS, clip_norm=1.0), r"LocalSteps\(.*clip_norm=1.0\)"),
        (replace(STEPS, optimizer="Muon"), r"LocalSteps\(.*optimizer='Muon'.*\)"),
    ],
)
def test_what_ranks_cannot_share_is_refused_by_its_reason(map, says: str) -> None:
    with pytest.raises(UsageError, match=f"not for map {says}; leave one of them out"):
        Compute(ranks=2).mapper(map)


def test_units_and_stacked_partitions_do_not_go_with_one_rank_and_several() -> None:
    with pytest.raises(UsageError, match="units and hybrid say what ranks share: give ranks, 2 or more"):
        Compute(units=("fc1",))
    with pytest.raises(UsageError, match="stacked = 8 trains networks in one process; leave it out, or ranks"):
        Compute(stacked=8, ranks=2)


class Own(Adam):
    """What it changes it does not say."""


def test_only_parts_that_treat_each_element_for_itself_are_done_in_shares() -> None:
    assert whole_part(Algorithm(STEPS, Mean(), Adam())) is None
    assert whole_part(Algorithm(STEPS, Median(), KeepExtras(Adam(), ()))) is None
    assert whole_part(Algorithm(STEPS, Krum(1), Adam())) == "Krum(f=1, keep=1)"
    assert whole_part(Algorithm(STEPS, Mean(), KeepExtras(Own(), ()))).startswith("KeepExtras")


def test_ranks_that_were_told_no_shares_are_refused() -> None:
    with pytest.raises(UsageError, match="must be told their shares"):
        mapped(Compute(ranks=2).mapper(STEPS), objective_of("chain"))


def test_the_skeleton_of_a_rank_touches_no_memory_of_its_parameters() -> None:
    before = psutil.Process().memory_info().rss
    network = _skeleton(ModelSpec("linear", (8192,), 4096, "float32", 0))
    size = sum(parameter.nbytes for parameter in network.parameters())
    assert psutil.Process().memory_info().rss - before < size / 4
