"""Refusals about executors: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"executor": "inline", "deadline": 5}, "executor inline waits for each map"),
    ({"executor": "graph", "deadline": "soon"}, "seconds after which a round with its quorum continues"),
    ({"executor": "graph", "deadline": 0}, "seconds after which a round with its quorum continues"),
    ({"executor": "graph", "deadline": 5, "algorithm": "downpour"}, "a parameter server does not wait"),
    ({"worker_timeout": 1}, "worker_timeout = 1: Input should be greater than or equal to 10"),
    ({"threads": 100000}, "threads = 100000: Input should be less than or equal to 1024"),
    ({"quorum": 9}, "quorum 9 is more than the 4 partitions"),
    (
        {"sites": "berlin,paris", "data": "npz:x", "ranks": 2},
        "ranks that share a network read all examples, and those of sites stay there",
    ),
    (
        {"sites": "berlin,paris", "drift": "refuse", "data": "npz:x"},
        "compares columns, which sites do not send; give describe_sites",
    ),
    ({"sites": "berlin,berlin"}, "names a site twice; give how many partitions it has, as berlin:2"),
    ({"sites": "berlin,paris:3", "partitions": 5}, "the sites have 4 partitions, not 5"),
    ({"ranks": 2, "algorithm": "fed_prox"}, "by its own gradient alone, not for map FedProx()"),
    ({"rounds": 10**9}, "rounds = 1000000000: Input should be less than or equal to 1000000"),
    ({"name": "n" * 251}, "String should have at most 250 characters"),
]
