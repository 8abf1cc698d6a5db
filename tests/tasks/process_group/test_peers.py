"""Ranks that send by themselves, in processes of their own: what comes, in which order, and who is gone."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

import pytest
import torch

from roundweave.storage.values.state import Update
from roundweave.tasks.process_group.channels import Broken
from roundweave.tasks.process_group.group import Group
from roundweave.tasks.process_group.peers import meet_peers
from tests.patience import PATIENCE
from tests.rows import but_first
from tests.tasks.process_group.test_group import RANKS, results_of

HOST = "127.0.0.1"
LARGE = 4_000_000
"""Elements of a vector that no buffer of a connection holds: of 16 MB."""


def vector(number: int, size: int) -> Update:
    return Update({"float32": torch.full((size,), float(number))})


def sizes(number: int) -> int:
    return (3, LARGE, 100, 0)[number % 4]


def all_send_at_once(group: Group) -> list[tuple[int, int]]:
    """The first rank to each, and each to the first, large ones too, while none receives: (rank, number)."""
    with meet_peers(group, HOST) as peers:
        others = range(1, RANKS) if group.rank == 0 else [0]
        for number in range(8):
            for other in others:
                peers.send(other, vector(number, sizes(number)))
        came = [peers.received.get(timeout=PATIENCE) for _ in range(8 * len(others))]
        group.all_gather("done")
    numbers = dict.fromkeys(others, 0)
    for rank, update in came:
        wanted = vector(numbers[rank], sizes(numbers[rank])).direction["float32"]
        assert torch.equal(update.direction["float32"], wanted)
        numbers[rank] += 1
    return [*numbers.items()]


def the_first_one_answers_whoever_asks(group: Group) -> int:
    """Rank 2 asks ten times, while rank 1 says nothing: it is answered each time."""
    with meet_peers(group, HOST) as peers:
        for asked in range(10):
            if group.rank == 2:
                peers.send(0, asked)
                assert peers.received.get(timeout=PATIENCE) == (0, -asked)
            if group.rank == 0:
                rank, value = peers.received.get(timeout=PATIENCE)
                peers.send(rank, -value)
        group.all_gather("done")
    return asked


def one_is_killed(group: Group) -> Any:
    with meet_peers(group, HOST) as peers:
        if group.rank == 1:
            peers.send(0, "last words")
            os.kill(os.getpid(), signal.SIGKILL)
        if group.rank == 2:
            return peers.received.get(timeout=PATIENCE), peers.gone
        came = [peers.received.get(timeout=PATIENCE) for _ in range(2)]
        with pytest.raises(Broken):
            for _ in range(100):
                peers.send(1, vector(0, LARGE))
        return came, peers.gone


def a_stranger_calls(group: Group) -> bool:
    """Each rank tries all ports where this machine listens, before those that belong here are connected."""
    all_gather = group.all_gather

    def gather(value: Any) -> list[Any]:
        gathered = all_gather(value)
        if group.rank == 1 and isinstance(gathered[0], tuple) and len(gathered[0]) == 2 and gathered[1] is None:
            for _ in range(3):
                with socket.create_connection(gathered[0]) as stranger:
                    stranger.sendall(b"0" * 100)
        return gathered

    group.all_gather = gather
    with meet_peers(group, HOST) as peers:
        if group.rank:
            peers.send(0, group.rank)
        else:
            assert sorted(peers.received.get(timeout=PATIENCE) for _ in range(RANKS - 1)) == [(1, 1), (2, 2)]
        group.all_gather("done")
    return True


def one_leaves(group: Group) -> tuple[bool, int]:
    """Who is left knows it, and so do the threads of who has left."""
    with meet_peers(group, HOST) as peers:
        if group.rank:
            assert peers.received.get(timeout=PATIENCE) == (0, None)
    for _ in range(100):
        if group.rank == 0 and not peers.gone:
            time.sleep(0.05)
    return peers.gone, sum(group.all_gather(1))


FIRST = [
    (all_send_at_once, {0: [(1, 8), (2, 8)], 1: [(0, 8)], 2: [(0, 8)]}),  # in order; none waits for a receiver
    # The third rank loses the first one, which leaves then.
    (one_is_killed, {0: ([(1, "last words"), (1, None)], True), 2: ((0, None), True)}),
]
MORE = [
    (the_first_one_answers_whoever_asks, {0: 9, 1: 9, 2: 9}),
    (a_stranger_calls, {0: True, 1: True, 2: True}),
    (one_leaves, dict.fromkeys(range(RANKS), (True, RANKS))),  # is gone for the others, and the group stays
]


@pytest.mark.parametrize(("work", "found"), but_first(FIRST, MORE))
def test_what_comes_and_who_is_gone(work, found) -> None:
    assert results_of(work, len(found)) == found
