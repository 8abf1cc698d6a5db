"""A group computes what one machine does, up to rounding, whatever it shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

import roundweave as rw
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.compute.mapper import Mapper
from tests.flows.plugins.tensor_parallel.networks import examples_of, objective_of, off, tensor_parallel_of
from tests.rows import but_first

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
STEPS = rw.LocalSteps(local_steps=10, batch_size=7, lr=0.05)

FIRST = [("wide", 4), ("norm", 3), ("gpt", 3), ("decoder", 2)]  # few ranks divide their units


@pytest.mark.parametrize(("case", "ranks"), but_first(FIRST, CASES, [2, 3, 4]))
def test_ranks_take_the_steps_of_one_machine(case: str, ranks: int) -> None:
    model, options = CASES[case]
    assert off(objective_of(model, **options), STEPS, ranks) < 1e-12


@pytest.mark.parametrize(("ranks", "dtype"), but_first([(3, "float64")], [2, 3, 4], TOLERANCE))
def test_a_hybrid_takes_the_steps_of_one_machine(ranks: int, dtype: str) -> None:
    assert off(objective_of("alexnet", dtype), STEPS, ranks, hybrid=True) < TOLERANCE[dtype]


def test_a_batch_of_a_hybrid_may_have_fewer_examples_than_there_are_ranks() -> None:
    assert off(objective_of("alexnet"), replace(STEPS, batch_size=2), 3, hybrid=True) < 1e-12


OPTIMIZERS = {
    "momentum": replace(STEPS, momentum=0.9, nesterov=True),
    "decay": replace(STEPS, optimizer_options={"weight_decay": 0.1}),
    "AdamW": replace(STEPS, optimizer="AdamW", lr=0.001),
    "gradient": rw.Gradient(batch_size=9),
    "accumulated": replace(STEPS, batch_size=3, accumulate=3),
    "own start": replace(STEPS, init="per-partition"),
}


FEW = [("AdamW", True), ("accumulated", False), ("own start", False)]


@pytest.mark.parametrize(("optimizer", "hybrid"), but_first(FEW, OPTIMIZERS, [False, True]))
def test_maps_that_treat_each_element_for_itself_see_no_difference(optimizer: str, hybrid: bool) -> None:
    assert off(objective_of("alexnet"), OPTIMIZERS[optimizer], 2, hybrid=hybrid) < 1e-12


def test_what_partitions_carry_of_their_optimizers_is_shared_like_the_network() -> None:
    objective = objective_of("chain", widths=[9, 11])
    local = replace(STEPS, optimizer="AdamW", lr=0.001, optimizer_state="carried").bound(objective, None)
    carries = []
    for mapper in (Mapper(), tensor_parallel_of(objective, 3)):
        carry: Mapping[str, Vectors] = {}
        for seed in (1, 2):
            (update,) = mapper(local, objective, objective.initial(), [(examples_of(objective), carry, seed)])
            carry = update.carry
        carries.append(carry)
    assert carries[0]["step"]["float64"].unique().tolist() == [20.0]
    for slot in local.carry:
        assert (carries[0][slot]["float64"] - carries[1][slot]["float64"]).abs().max() < 1e-12


def test_scores_are_those_of_the_whole_network() -> None:
    """In evaluation torch would compute an encoder layer by one operation, which reads weights past the layers."""
    objective = objective_of("encoder")
    examples = examples_of(objective)

    def outputs(objective, state: rw.State) -> torch.Tensor:
        return objective.network(state).eval()(examples.inputs)

    both = tensor_parallel_of(objective, 2), Mapper()
    with torch.no_grad():
        found, wanted = (mapper.scored(objective, objective.initial(), outputs) for mapper in both)
    assert (found - wanted).abs().max() < 1e-12
