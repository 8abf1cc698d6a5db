"""FedProx, SCAFFOLD, FedDyn, FedNova, MimeLite, q-FedAvg and AFL against the papers' loops in plain floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from roundweave import Run, State, Update, reduce_all
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.algorithms.reduces.mean import Fair
from tests.rows import but_first

SOURCE = """
import torch

def data(partition, partitions):
    count = partition % 3 + 1
    return torch.ones(count, 1).double(), torch.full((count, 1), partition / 4).double()

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))

    def forward(self, inputs):
        return inputs @ self.w
"""
"""Partition p has one to three examples with the loss (w - p / 4)^2, so that all its batches have one gradient."""

PARTITIONS, LR = 10, 0.1
SIZES, TARGETS = [p % 3 + 1 for p in range(PARTITIONS)], [p / 4 for p in range(PARTITIONS)]

Loop = Callable[[list[list[int]]], float]


def fields(own, cohort: int | None) -> dict[str, object]:
    path = own(SOURCE)
    where = {"data": f"{path}:data", "model": f"{path}:Network", "loss": "mse", "dtype": "float64", "held_out": 0}
    return where | {"partitions": PARTITIONS, "cohort": cohort, "rounds": 4, "batch_size": 1, "lr": LR}


def walked(x: float, p: int, steps: int, term: Callable[[float], float] = lambda y: 0.0) -> float:
    y = x
    for _ in range(steps):
        y -= LR * (2 * (y - TARGETS[p]) + term(y))
    return y


def mean(numbers: list[float], weights: list[float]) -> float:
    return math.fsum(n * w for n, w in zip(numbers, weights, strict=True)) / math.fsum(weights)


def fed_prox(cohorts: list[list[int]]) -> float:
    """Algorithm 2 of Li et al. 2020 with mu 0.6, the local problem by three steps."""
    x = 2.0
    for cohort in cohorts:
        x = mean([walked(x, p, 3, lambda y, x=x: 0.6 * (y - x)) for p in cohort], [SIZES[p] for p in cohort])
    return x


def scaffold(cohorts: list[list[int]]) -> float:
    """Algorithm 1 of Karimireddy et al. 2020 with option II, three steps and an outer rate of 0.5."""
    x, c, own = 2.0, 0.0, [0.0] * PARTITIONS
    for cohort in cohorts:
        arrived = [walked(x, p, 3, lambda y, p=p, c=c: c - own[p]) for p in cohort]
        changes = [(x - y) / (3 * LR) - c for y in arrived]
        for p, change in zip(cohort, changes, strict=True):
            own[p] += change
        x += 0.5 * (sum(arrived) / len(cohort) - x)
        c += sum(changes) / PARTITIONS
    return x


def fed_dyn(cohorts: list[list[int]]) -> float:
    """Algorithm 1 of Acar et al. 2021 with alpha 0.3, the local problem by three steps."""
    x, h, g, alpha = 2.0, 0.0, [0.0] * PARTITIONS, 0.3
    for cohort in cohorts:
        arrived = []
        for p in cohort:
            arrived.append(walked(x, p, 3, lambda y, p=p, x=x: alpha * (y - x) - g[p]))
            g[p] -= alpha * (arrived[-1] - x)
        h -= alpha / PARTITIONS * sum(y - x for y in arrived)
        x = sum(arrived) / len(cohort) - h / alpha
    return x


def fed_nova(cohorts: list[list[int]]) -> float:
    """Wang et al. 2020 for plain SGD; a partition takes as many steps as it has examples."""
    x = 2.0
    for cohort in cohorts:
        sizes = [SIZES[p] for p in cohort]
        steps = [(x - walked(x, p, SIZES[p])) / SIZES[p] for p in cohort]
        x -= mean(sizes, sizes) * mean(steps, sizes)
    return x


def mime_lite(cohorts: list[list[int]]) -> float:
    """MimeLite of Karimireddy et al. 2021 with momentum 0.8, in torch's convention, and three steps."""
    x, m = 2.0, 0.0
    for cohort in cohorts:
        sizes = [SIZES[p] for p in cohort]
        arrived = [walked(x, p, 3, lambda y, m=m: 0.8 * m) for p in cohort]
        m = 0.8 * m + mean([2 * (x - TARGETS[p]) for p in cohort], sizes)
        x = mean(arrived, sizes)
    return x


def q_fed_avg(cohorts: list[list[int]]) -> float:
    """Algorithm 2 of Li et al. 2020 with q = 2, L = 1 / lr, and three steps."""
    x, q, lipschitz = 2.0, 2, 1 / LR
    for cohort in cohorts:
        loss = [(x - TARGETS[p]) ** 2 for p in cohort]
        moved = [lipschitz * (x - walked(x, p, 3)) for p in cohort]
        h = [q * f ** (q - 1) * d * d + lipschitz * f**q for f, d in zip(loss, moved, strict=True)]
        x -= math.fsum(f**q * d for f, d in zip(loss, moved, strict=True)) / math.fsum(h)
    return x


def afl(cohorts: list[list[int]]) -> float:
    """Mohri et al. 2019 with one step, and weights by multiplied exponentials of 0.7 times the losses."""
    x, weights = 2.0, [1.0] * PARTITIONS
    for cohort in cohorts:
        step = mean([x - walked(x, p, 1) for p in cohort], [weights[p] for p in cohort])
        for p in cohort:
            weights[p] *= math.exp(0.7 * (x - TARGETS[p]) ** 2)
        x -= step
    return x


LOOPS: dict[str, tuple[Loop, dict[str, object]]] = {
    "fed_prox": (fed_prox, {"mu": 0.6, "local_steps": 3}),
    "scaffold": (scaffold, {"local_steps": 3, "outer_lr": 0.5}),
    "fed_dyn": (fed_dyn, {"alpha": 0.3, "local_steps": 3}),
    "fed_nova": (fed_nova, {"local_epochs": 1}),
    "mime_lite": (mime_lite, {"beta": 0.8, "local_steps": 3}),
    "q_fed_avg": (q_fed_avg, {"q": 2, "local_steps": 3}),
    "afl": (afl, {"ascent": 0.7}),
}


@pytest.mark.parametrize("cohort", but_first([5], [None]))
@pytest.mark.parametrize("name", LOOPS)
def test_it_is_the_papers_loop(train, own, name: str, cohort: int | None) -> None:
    loop, options = LOOPS[name]
    run: Run = train(**fields(own, cohort), algorithm=name, **options)
    cohorts = [[*run.round(number).commit.updates] for number in range(1, 5)]
    assert run.round(4).state.params["float64"].item() == pytest.approx(loop(cohorts), rel=1e-12)
    assert run.replay(4).identical


def test_fairness_takes_the_mean_rate_of_the_steps(train, own) -> None:
    by_step = {"lr_schedule_by": "step", "warmup": 2, "local_steps": 4}
    run = train(**fields(own, None) | {"rounds": 1}, algorithm="q_fed_avg", **by_step)
    wanted = LR * (1 + 2 + 3 + 4) / 9 / 4  # of the eight steps of two rounds, and the ninth has the whole rate
    rates = [record.metrics["rate"] for record in run.round(1).commit.updates.values()]
    assert rates == pytest.approx([wanted] * PARTITIONS)


@pytest.mark.parametrize("times", [1e-9, 1.0, 1e9])
def test_fairness_does_not_depend_on_the_unit_of_losses(times: float) -> None:
    """With losses t F and directions that grow by the root of t, so do the steps; here F^15 is no float32."""
    losses, root = [4.0, 3.0, 0.0], math.sqrt(times)
    metrics = [{"start_loss": times * loss, "rate": 1.0} for loss in losses]
    updates = [Update({"float32": torch.tensor([root * 2.0])}, weight=1, metrics=told) for told in metrics]
    step = reduce_all(Fair(q=15.0), State({}), updates).direction["float32"].item()
    powers = [loss**15 for loss in losses]
    wanted = 2 * sum(powers) / sum(15 * loss**14 * 4 + power for loss, power in zip(losses, powers, strict=True))
    assert step == pytest.approx(root * wanted, rel=1e-5)


def test_a_map_that_does_not_tell_what_a_reduce_needs_is_named(train, own) -> None:
    with pytest.raises(RoundFailed, match="reduce Fair needs the metric 'start_loss' of its own map"):
        train(**fields(own, None), algorithm={"name": "q_fed_avg", "map": "local_steps"})


def test_without_fairness_it_is_the_plain_mean(train, own) -> None:
    equal = train(**fields(own, None), local_steps=3, algorithm="q_fed_avg", q=0, name="fair")
    plain = train(**fields(own, None), local_steps=3, recombined={"reduce": "plain_mean"}, name="plain")
    ends = [run.round(4).state.params["float64"].item() for run in (equal, plain)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)
