"""Training on MNIST: steps, whole runs to a target, and rounds of federated averaging."""

from __future__ import annotations

from tests.benchmarks.table.rows.base import ALL, FEW, PEERS, Contender, Row, ours
from tests.benchmarks.table.rows.examples import mnist

DDP = "DDP, gloo"
FLOWER = Contender("Flower", f"{PEERS}.flower.fedavg", environment="flower")
FEDJAX = Contender("FedJAX", f"{PEERS}.fedjax.rounds", ("fedavg",), environment="fedjax")
ONE = "one process"
TO_TARGET = (Contender(DDP, f"{PEERS}.ddp.ranks", ("accuracy",)), Contender(ONE, f"{PEERS}.plain.accuracy"))

STEP = Row(
    "step",
    "synchronous round, 784-512-256-10 (0.54 M), B = 32 a partition, 2 workers",
    {"round": "ms a round"},
    (Contender(DDP, f"{PEERS}.ddp.ranks", ("step",)),),
    ours("rounds", "step"),
    mnist,
    {FEW: {DDP: (0.8,)}, ALL: {DDP: (2.0,)}},
)
SHARED = f"{PEERS}.ddp.ranks"
SPLIT = Row(
    "split",
    "a step of 784-4096-10, B = 64, on two ranks that share the network",
    {"step": "ms a step"},
    (Contender("whole on each rank", SHARED, ("whole",)), Contender("torch's own", SHARED, ("tensor-parallel",))),
    ours("rounds", "split", keeps=(ALL,)),
    mnist,
    {ALL: {"whole on each rank": (0.8,)}},
)
ACCURACY = Row(
    "accuracy",
    "MNIST to 97 %, 784-512-512-10, B = 64 a process, synchronous SGD, whole process",
    {"exit": "s"},
    TO_TARGET,
    ours("command", "accuracy"),
    mnist,
    {FEW: {DDP: (0.6,), ONE: (1.6,)}, ALL: {DDP: (1.5,), ONE: (4,)}},
)
ACCURACY_APART = Row(
    "accuracy-apart",
    "the same, ours averaging every 100 local steps",
    {"exit": "s"},
    TO_TARGET,
    ours("command", "accuracy-apart"),
    mnist,
    {FEW: {DDP: (0.5,), ONE: (1.2,)}},
)
FEDAVG = Row(
    "fedavg",
    "federated averaging on MNIST: 10 partitions, 784-256-10, B = 32, a local epoch a round; whole process",
    {"round": "s a round", "first": "s to the first round", "exit": "s to the end of 8"},
    (FLOWER, FEDJAX, Contender("torch loop", f"{PEERS}.plain.rounds", ("fedavg",))),
    ours("command", "fedavg"),
    mnist,
    {keep: {"FedJAX": (0.8, 1.3, 1.0)} for keep in (FEW, ALL)},
)
