"""Asynchronous algorithms on f(x) = a/2 (x - c)^2, with a c for each partition: their papers in plain floats."""

from __future__ import annotations

from collections.abc import Callable
from math import nan, sqrt

import pytest

from roundweave.flows.plugins.cohort.sampler import Cohort
from roundweave.flows.stored import Run
from roundweave.tasks.numerics.pinning import derive_seed
from tests.rows import but_first

START, CURVATURE = 2.0, 0.5
CENTRES = (-1.0, 0.75, 3.0, 0.5)
MIXED = (0, 0, 1, 0, 2, 1)
"""An order in which one partition pushes more often than others."""

QUADRATIC = f"""
import torch
from roundweave import Algorithm, Mean, Sgd
from roundweave.tasks.algorithms.maps.gradient import Downpour
from roundweave.tasks.algorithms.when import Asynchronous
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


@pytest.mark.parametrize("staleness", [0, 3])
def test_partitions_that_take_turns_make_sgd_with_a_delay(served, quadratic, staleness: int) -> None:
    """x_{k+1} = x_k - lr a (x_{k-s} - c), where x_{-s}, …, x_0 are the start: s + 1 partitions in a row."""
    partitions, rounds, fields = staleness + 1, 12, {"algorithm": "async_sgd", "lr": 0.3}
    run = served(*range(partitions), rounds=rounds, partitions=partitions, **fields, **quadratic)
    x = [START]
    for k in range(rounds):
        x.append(x[k] - 0.3 * CURVATURE * (x[max(k - staleness, 0)] - CENTRES[k % partitions]))
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)
    assert run.history()["staleness"].tolist()[1:] == [min(k, staleness) for k in range(rounds)]


def test_downpour_with_adagrad_divides_by_the_root_of_the_squares_so_far(served, quadratic) -> None:
    tau, rounds, order = 1e-3, 20, MIXED
    options = {"algorithm": "downpour", "outer_lr": 0.2, "outer_tau": tau}
    run = served(*order, rounds=rounds, partitions=3, **options, **quadratic)
    x, squares, fetched = [START], tau**2, dict.fromkeys(order, START)
    for k in range(rounds):
        partition = order[k % len(order)]
        g = gradient(fetched[partition], partition)
        squares += g * g
        x.append(x[-1] - 0.2 * g / (sqrt(squares) + tau))
        fetched[partition] = x[-1]
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)


FIRST = [(1, 3, MIXED), (2, 4, (0, 1, 2))]


@pytest.mark.parametrize(
    ("push", "fetch", "order"), but_first(FIRST, [(1, 1, MIXED), (2, 2, MIXED), (3, 6, MIXED)])
)
def test_replicas_go_on_by_themselves_between_fetches_and_push_sums(served, quadratic, push, fetch, order) -> None:
    rounds = 24
    options = {"push_every": push, "fetch_every": fetch, "lr": 0.2}
    run = served(*order, rounds=rounds, partitions=3, algorithm=plain(quadratic), **options, **quadratic)
    x, pushed = replicas(order, rounds, 0.2, push, fetch)
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)
    found = [run.round(k + 1).update(order[k % len(order)]).direction["float64"].item() for k in range(rounds)]
    assert found == pytest.approx(pushed, rel=0, abs=1e-12)


@pytest.mark.parametrize(("order", "steps"), but_first([(MIXED, 5), ((0, 1, 2), 1)], [((0,), 5)]))
def test_elastic_averaging_is_the_papers(served, quadratic, order, steps) -> None:
    """Zhang et al. 2015, Algorithm 1: every tau steps x moves by alpha (x - centre), and the centre against it.

    The centre's part arrives with the push.
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
    """alpha = 0.9 / p where nothing is given (section 5): in its first push nobody moves, in its second by it."""
    run = served(0, 0, rounds=2, partitions=3, algorithm="easgd", local_steps=1, lr=0.2, **quadratic)
    first = START - 0.2 * gradient(START, 0)
    assert path_of(run) == pytest.approx([START, START, START + 0.3 * (first - START)], rel=0, abs=1e-12)


@pytest.fixture
def drawn(train, quadratic) -> Callable[..., tuple[Run, list[list[tuple[int, int, bool]]]]]:
    """Run a cohort of 2 of 4 partitions; for each round: who pushed, who was drawn then, and if that closed it.

    After k pushes it is the one at the place SHA-256 (seed, "next", k) modulo 3 of the 3 that are not in flight.
    """

    def run(rounds: int, **fields: object) -> tuple[Run, list[list[tuple[int, int, bool]]]]:
        ran = train(None, 5, rounds=rounds, partitions=4, cohort=2, speeds=(1, 2, 0.4, 1), **quadratic | fields)
        in_flight, pushes, told = [*Cohort(2).draw(0, 0, range(4))], 0, list[list[tuple[int, int, bool]]]()
        for round in range(1, rounds + 1):
            arrived = list(ran.round(round).commit.updates)
            told.append([])
            for partition in arrived:
                pushes += 1
                in_flight.remove(partition)
                free = [each for each in range(4) if each not in in_flight]
                following = free[derive_seed(0, "next", pushes) % 3]
                in_flight.append(following)
                told[-1].append((partition, following, len(told[-1]) + 1 == len(arrived)))
        return ran, told

    return run


def test_a_buffer_of_a_cohort_is_the_papers(drawn) -> None:
    """Nguyen et al. 2022, Algorithm 1, with a concurrency of 2 and buffers of 2, each of other partitions."""
    options = {"local_steps": 3, "batch_size": None, "lr": 0.2, "outer_lr": 0.7, "buffer": 2, "stale": "scale"}
    run, told = drawn(30, algorithm="fed_buff", **options)
    x, fetched = [START], dict.fromkeys(Cohort(2).draw(0, 0, range(4)), (START, 0))
    for round, pushes in enumerate(told):
        total = 0.0
        for partition, following, closing in pushes:
            begin, version = fetched.pop(partition)
            here = begin
            for _ in range(3):
                here -= 0.2 * gradient(here, partition)
            total += (begin - here) / (1 + round - version)
            fetched[following] = (nan, round + 1) if closing else (x[-1], round)
        x.append(x[-1] - 0.7 * total / 2)
        fetched[following] = x[-1], round + 1
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)
    assert {p for pushes in told for p, _, _ in pushes} == {0, 1, 2, 3}


def test_who_sits_out_keeps_parameters_of_its_own_and_fetches_the_centre_when_it_is_drawn(drawn) -> None:
    options = {"algorithm": "easgd", "local_steps": 2, "batch_size": None, "lr": 0.2, "elasticity": 0.3}
    run, told = drawn(40, **options)
    centre, own, fetched = [START], dict[int, float](), dict.fromkeys(Cohort(2).draw(0, 0, range(4)), START)
    for [(p, following, _)] in told:
        begin = fetched.pop(p)
        own.setdefault(p, begin)
        move = 0.3 * (own[p] - begin)
        own[p] -= move + 0.2 * gradient(own[p], p)
        own[p] -= 0.2 * gradient(own[p], p)
        centre.append(centre[-1] + move)
        fetched[following] = centre[-1]
    assert path_of(run) == pytest.approx(centre, rel=0, abs=1e-12)
    sources = run.round(40).commit.carry_from
    last = {p: run.round(row).update(p).carry["own"]["float64"].item() for p, row in sources.items()}
    assert last == pytest.approx(own, rel=0, abs=1e-12)


@pytest.mark.parametrize("push", [1, 3])
def test_replicas_of_a_cohort_push_sums_and_fetch_when_they_are_drawn(drawn, quadratic, push) -> None:
    options = {"algorithm": plain(quadratic), "push_every": push, "fetch_every": push, "lr": 0.2}
    run, told = drawn(30, **options)
    x, fetched = [START], dict.fromkeys(Cohort(2).draw(0, 0, range(4)), START)
    for [(p, following, _)] in told:
        here, total = fetched.pop(p), 0.0
        for _ in range(push):
            g = gradient(here, p)
            total, here = total + g, here - 0.2 * g
        x.append(x[-1] - 0.3 * total)
        fetched[following] = x[-1]
    assert path_of(run) == pytest.approx(x, rel=0, abs=1e-12)
