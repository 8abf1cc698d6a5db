"""Asynchronous algorithms on f(x) = a/2 (x - c)^2, with a c for each partition: their papers in plain floats."""

from __future__ import annotations

from math import sqrt

import pytest

from flows.stored import Run

START, CURVATURE = 2.0, 0.5
CENTRES = (-1.0, 0.75, 3.0, 0.5)

QUADRATIC = f"""
import torch
from roundweave import Algorithm, Mean, Sgd
from tasks.maps.gradient import Downpour
from tasks.when import Asynchronous
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([{START}], dtype=torch.float64))
    def forward(self, inputs):
        return self.x * inputs
def loss(outputs, targets):
    return {CURVATURE} / 2 * (outputs - targets).square().mean()
def data(partition, partitions):
    return torch.ones(4, 1).double(), torch.full((4, 1), {CENTRES}[partition]).double()
def plain(lr=0.3, outer_lr=0.3, push_every=1, fetch_every=1):
    replica = Downpour(lr=lr, batch_size=None, push_every=push_every, fetch_every=fetch_every)
    when = Asynchronous(fetch_every=fetch_every, push_every=push_every)
    return Algorithm(replica, Mean(), Sgd(outer_lr), when)
"""


@pytest.fixture
def quadratic(own) -> dict[str, object]:
    """The network, its loss and its data, of as many partitions as are asked for."""
    path = own(QUADRATIC)
    parts = {"model": f"{path}:Net", "loss": f"{path}:loss", "data": f"{path}:data"}
    return {**parts, "dtype": "float64", "held_out": 0, "keep": "all"}


def plain(fields: dict[str, object]) -> str:
    return str(fields["data"]).removesuffix(":data") + ":plain"


def path_of(run: Run) -> list[float]:
    return [float(run.round(round).params["x"]) for round in range(run.done + 1)]


def gradient(x: float, partition: int) -> float:
    return CURVATURE * (x - CENTRES[partition])


def replicas(
    order: tuple[int, ...], rounds: int, lr: float, push: int = 1, fetch: int = 1
) -> tuple[list[float], list[float]]:
    """Dean et al. 2012, Algorithm 1, with plain SGD of rate 0.3 at the server: its x, and what was pushed."""
    x, pushed = [START], list[float]()
    fetched, here, steps = dict.fromkeys(order, START), dict[int, float](), dict.fromkeys(order, 0)
    for round in range(rounds):
        p, total = order[round % len(order)], 0.0
        for _ in range(push):
            if steps[p] % fetch == 0:
                here[p] = fetched[p]
            g = gradient(here[p], p)
            total, here[p], steps[p] = total + g, here[p] - lr * g, steps[p] + 1
        x.append(x[-1] - 0.3 * total)
        pushed.append(total)
        fetched[p] = x[-1]
    return x, pushed


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("algorithm", ["async_sgd", "downpour with plain sgd"])
def test_partitions_that_take_turns_make_sgd_with_a_delay(served, quadratic, staleness: int, algorithm) -> None:
    """x_{k+1} = x_k - lr a (x_{k-s} - c), where x_{-s}, …, x_0 are the start: s + 1 partitions in a row."""
    partitions, rounds = staleness + 1, 24
    named = {"algorithm": "async_sgd", "lr": 0.3} if algorithm == "async_sgd" else {"algorithm": plain(quadratic)}
    run = served(*range(partitions), rounds=rounds, partitions=partitions, **named, **quadratic)
    x = [START]
    for k in range(rounds):
        x.append(x[k] - 0.3 * CURVATURE * (x[max(k - staleness, 0)] - CENTRES[k % partitions]))
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)
    assert run.history()["staleness"].tolist()[1:] == [min(k, staleness) for k in range(rounds)]


def test_a_step_too_long_for_its_delay_diverges_as_the_recursion_does(served, quadratic) -> None:
    """With lr a = 1.5: |1 - 1.5| < 1 without a delay; with one of 1 r^2 - r + 1.5 = 0, so |r| = sqrt(1.5)."""
    fields = quadratic | {"algorithm": "async_sgd", "lr": 3.0}
    alone = path_of(served(0, rounds=40, partitions=1, **fields))
    assert abs(alone[-1] - CENTRES[0]) < 1e-9
    delayed = path_of(served(0, 1, rounds=40, partitions=2, **fields))
    assert abs(delayed[-1]) > 100


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 0, 1, 0, 2, 1)])
def test_downpour_with_adagrad_divides_by_the_root_of_the_squares_so_far(served, quadratic, order) -> None:
    tau, rounds = 1e-3, 20
    run = served(
        *order, rounds=rounds, partitions=3, algorithm="downpour", outer_lr=0.2, outer_tau=tau, **quadratic
    )
    x, squares, fetched = [START], tau**2, dict.fromkeys(order, START)
    for k in range(rounds):
        partition = order[k % len(order)]
        g = gradient(fetched[partition], partition)
        squares += g * g
        x.append(x[-1] - 0.2 * g / (sqrt(squares) + tau))
        fetched[partition] = x[-1]
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)


@pytest.mark.parametrize(("push", "fetch"), [(1, 1), (2, 2), (1, 3), (2, 4), (3, 6)])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 0, 1, 0, 2, 1)])
def test_replicas_go_on_by_themselves_between_fetches_and_push_sums(served, quadratic, push, fetch, order) -> None:
    rounds = 24
    options = {"push_every": push, "fetch_every": fetch, "lr": 0.2}
    run = served(*order, rounds=rounds, partitions=3, algorithm=plain(quadratic), **options, **quadratic)
    x, pushed = replicas(order, rounds, 0.2, push, fetch)
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)
    found = [run.round(k + 1).update(order[k % len(order)]).direction["float64"].item() for k in range(rounds)]
    assert found == pytest.approx(pushed, rel=0, abs=1e-12)


@pytest.mark.parametrize("order", [(0,), (0, 1, 2), (0, 0, 1, 0, 2, 1)])
@pytest.mark.parametrize("steps", [1, 5])
def test_elastic_averaging_is_the_papers(served, quadratic, order, steps) -> None:
    """Zhang et al. 2015, Algorithm 1: every tau steps x moves by alpha (x - centre), and the centre against it.

    The centre's part arrives when the turn ends.
    """
    rounds, partitions = 24, max(order) + 1
    options = {"algorithm": "easgd", "local_steps": steps, "lr": 0.2, "elasticity": 0.3}
    run = served(*order, rounds=rounds, partitions=partitions, **options, **quadratic)
    centre, own, fetched = [START], dict.fromkeys(order, START), dict.fromkeys(order, START)
    for k in range(rounds):
        p = order[k % len(order)]
        move = 0.3 * (own[p] - fetched[p])
        own[p] -= move + 0.2 * gradient(own[p], p)
        for _ in range(steps - 1):
            own[p] -= 0.2 * gradient(own[p], p)
        centre.append(centre[-1] + move)
        fetched[p] = centre[-1]
    assert path_of(run) == pytest.approx(centre, rel=0, abs=1e-12)
    carried = {p: run.round(rounds).commit.carry_from[p] for p in set(order)}
    last = {p: run.round(row).update(p).carry["own"]["float64"].item() for p, row in carried.items()}
    assert last == pytest.approx(own, rel=0, abs=1e-12)


def test_the_elastic_force_of_all_partitions_is_the_papers(served, quadratic) -> None:
    """alpha = 0.9 / p where nothing is given (section 5): in its first turn nobody moves, in its second by it."""
    run = served(0, 0, rounds=2, partitions=3, algorithm="easgd", local_steps=1, lr=0.2, **quadratic)
    first = START - 0.2 * gradient(START, 0)
    assert path_of(run) == pytest.approx([START, START, START + 0.3 * (first - START)], rel=0, abs=1e-12)
