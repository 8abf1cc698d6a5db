"""What is not training: rounds without work, many small clients, a parameter server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.table.rows.base import ALL, FEW, PEERS, SCRIPTS, Contender, Row, ours
from tests.benchmarks.table.rows.examples import clients, few, mnist, none
from tests.benchmarks.table.scripts.updates import write_examples

PARTITIONS = ("2", "10", "100")
SERVERS = ("torch RPC", "Dask actor beside a worker", "Dask actor, a process of its own")

NOOP = Row(
    "noop",
    "a round that computes nothing",
    {number: f"ms, {number} partitions" for number in PARTITIONS},
    (Contender("FedJAX", f"{PEERS}.fedjax.noop", PARTITIONS, environment="fedjax"),),
    ours("rounds", ",".join(PARTITIONS)),
    none,
    {FEW: {"FedJAX": (3, 1.5, 1.0)}, ALL: {"FedJAX": (4, 2.5, 1.1)}},
)
OF_CLIENTS = (
    Contender("torch loop", f"{PEERS}.plain.rounds", ("clients",)),
    Contender("FedJAX", f"{PEERS}.fedjax.rounds", ("clients",), environment="fedjax"),
)
CLIENTS = Row(
    "clients",
    "100 clients, 64-32-10, 10 local steps of B = 8 each",
    {"round": "ms a round"},
    OF_CLIENTS,
    ours("rounds", "clients", keeps=(ALL,)),
    clients,
)
CLIENTS_STACKED = Row(
    "clients-stacked",
    "the same, ours with 56 partitions stacked",
    {"round": "ms a round"},
    OF_CLIENTS,
    ours("rounds", "clients-stacked", keeps=(ALL,)),
    clients,
    {ALL: {"torch loop": (0.2,)}},
)
FEDJAX = "FedJAX"


def federated(
    name: str,
    title: str,
    examples: Callable[[str | None, Path], None],
    target: float,
    of_all: float,
    stacked: str = "",
) -> Row:
    """Federated averaging on MNIST, 784-32-10, scored in each round; `of_all` is the target if all is stored."""
    peers = (
        Contender("torch loop", f"{PEERS}.plain.rounds", (name,)),
        Contender(FEDJAX, f"{PEERS}.fedjax.rounds", (name,), environment="fedjax"),
        Contender("pfl", f"{PEERS}.pfl.federated", (name,), environment="pfl"),
        Contender("BlazeFL", f"{PEERS}.blazefl.federated", (name,), environment="blazefl"),
    )
    mine, reading = ours("rounds", name + stacked), {"round": "ms a round"}
    targets = {FEW: {FEDJAX: (target,), "pfl": (target,)}, ALL: {FEDJAX: (of_all,), "pfl": (of_all,)}}
    return Row(f"federated-{name}{stacked}", title, reading, peers, mine, examples, targets)


ALL_OF_FEW = "100 clients of 100 examples of MNIST, all take part, 784-32-10, B = 20"
SOME_OF_MANY = "50 of 10,000 clients of 6 examples of MNIST, 784-32-10, B = 6"
BY_50 = "the same, ours with 50 partitions stacked"
FEDERATED = (
    federated("all", ALL_OF_FEW, few, 0.8, 1.0),
    federated("all", BY_50, few, 0.8, 1.0, "-stacked"),
    federated("cohort", SOME_OF_MANY, mnist, 1.0, 1.4),
    federated("cohort", BY_50, mnist, 1.0, 1.4, "-stacked"),
)
SERVER = Row(
    "server",
    "asynchronous SGD, 784-256-10, B = 32, 2 workers",
    {"update": "ms an update"},
    tuple(Contender(name, f"{SCRIPTS}.updates", (name,)) for name in SERVERS),
    ours("updates", "Roundweave"),
    write_examples,
    {FEW: {"torch RPC": (1.5,)}, ALL: {"torch RPC": (3,)}},
)
