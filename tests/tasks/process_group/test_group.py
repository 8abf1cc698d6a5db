"""Ranks in processes of their own: what one tells all have, and who is left alone knows it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from roundweave.storage.values.state import Update
from roundweave.tasks.process_group import group as groups
from roundweave.tasks.process_group.channels import Broken, SharedMemory
from roundweave.tasks.process_group.group import Connections, Group, Rendezvous, join_group, open_rendezvous
from tests.patience import PATIENCE
from tests.rows import but_first

RANKS = 3


def told(rank: int, number: int) -> Update:
    """Of another size each time, larger and smaller ones."""
    size = (7, 300_000, 20, 1_000_000, 3)[number % 5] + rank
    return Update({"float32": torch.full((size,), float(rank * 100 + number))}, weight=rank + 1)


def all_exchange(group: Group) -> bool:
    """Whether what all tell is what each has told, and each has what each had for it, over many exchanges."""
    for number in range(10):
        told_all = group.all_gather(told(group.rank, number))
        scattered = group.scatter([told(10 * group.rank + to, number) for to in range(RANKS)])
        for rank in range(RANKS):
            pairs = (told_all[rank], told(rank, number)), (scattered[rank], told(10 * rank + group.rank, number))
            for found, wanted in pairs:
                equal = torch.equal(found.direction["float32"], wanted.direction["float32"])
                if not equal or found.weight != wanted.weight:
                    return False
    return True


def all_exchange_by_network(group: Group) -> bool:
    assert not isinstance(group._channels[0], SharedMemory)
    return all_exchange(group)


def some_talk_apart(group: Group) -> tuple[int, list[int], list[int], bool]:
    """Of three ranks, the first two and the last one; what crosses between two is counted by each."""
    part = group.part([(0, 1), (2,)])
    before = part.sent
    heard = part.all_gather(group.rank), part.scatter([10 * group.rank + to for to in range(part.ranks)])
    return part.rank, *heard, part.sent > before


def one_dies_to_its_part(group: Group) -> str | None:
    return one_dies(group, group.part([(0, 1), (2,)]))


def one_dies(group: Group, part: Group | None = None) -> str | None:
    try:
        group.all_gather(group.rank)  # which the rank that dies may have done before the others
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (part or group).all_gather(np.zeros(1000))
    except Broken:
        return "broken"
    return None


def one_leaves(group: Group) -> str | None:
    return "left" if group.rank == 1 and group.all_gather(group.rank) else one_dies(group)


def one_is_stopped(group: Group) -> str | None:
    """The others are told to wait no longer, as a rank is once nobody waits for it."""
    processes = group.all_gather(os.getpid())
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Timer(0.5, group.connections.shut).start()
    try:
        group.all_gather(group.rank)
    except Broken:
        return "broken"
    finally:
        if group.rank == 0:
            os.kill(processes[1], signal.SIGKILL)
    return None


def link_is_cut(group: Group) -> str:
    """Of the machine to itself. A heartbeat is of seconds here, not of a minute."""
    groups.HEARTBEAT.update(TCP_KEEPIDLE=1, TCP_KEEPINTVL=1, TCP_USER_TIMEOUT=3000)
    group.connections.watch()
    try:
        group.all_gather(group.rank)  # which rank 0 may have done before the others
        if group.rank == 0:
            subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        group.all_gather(group.rank)
        group.all_gather(group.rank)
    except Broken:
        return "broken"
    return "whole"


def rank(number: int, ports: Any, results: Any, work: Callable[[Group], Any], shares: bool) -> None:
    if not shares:
        del os.memfd_create  # as on a system that has no such memory
    opened = open_rendezvous("127.0.0.1") if number == 0 else None
    if opened is not None:
        for _ in range(RANKS - 1):
            ports.put(opened.port)
    meeting = Rendezvous(number, RANKS, "127.0.0.1", opened.port if opened else ports.get())
    before = psutil.Process().net_connections()
    with join_group(meeting, lambda: False, Connections(), opened) as group:
        connections = [*before, *psutil.Process().net_connections()]
        assert {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN} <= {"127.0.0.1"}
        results.put((number, work(group)))


def results_of(work: Callable[[Group], Any], ranks: int, shares: bool = True) -> dict[int, Any]:
    """What ranks give, so many of them."""
    context = multiprocessing.get_context("forkserver")
    ports, results = context.Queue(), context.Queue()
    processes = [context.Process(target=rank, args=(n, ports, results, work, shares)) for n in range(RANKS)]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=PATIENCE) for _ in range(ranks))
    for process in processes:
        process.join(20)
        assert process.exitcode is not None, "a rank did not end"
    return found


@pytest.mark.parametrize(("work", "shares"), but_first([(all_exchange, True)], [(all_exchange_by_network, False)]))
def test_all_ranks_have_what_each_tells(work, shares) -> None:
    assert results_of(work, RANKS, shares) == {0: True, 1: True, 2: True}


def test_parts_of_a_group_talk_for_themselves() -> None:
    found = results_of(some_talk_apart, RANKS)
    assert found == {0: (0, [0, 1], [0, 10], True), 1: (1, [0, 1], [1, 11], True), 2: (0, [2], [20], False)}


MORE = [
    (one_dies_to_its_part, {0: "broken", 2: None}),  # those of another part do not mind
    (one_is_stopped, {0: "broken", 2: "broken"}),  # who waits can be told to wait no longer
    (one_leaves, {0: "broken", 1: "left", 2: "broken"}),
]


@pytest.mark.parametrize(("work", "found"), but_first([(one_dies, {0: "broken", 2: "broken"})], MORE))
def test_who_is_left_alone_knows_it(work, found) -> None:
    assert results_of(work, len(found)) == found


@pytest.mark.thorough
def test_ranks_whose_link_is_cut_for_good_know_it_on_both_sides() -> None:
    if subprocess.run(["unshare", "-rn", "ip", "link"], check=False, capture_output=True).returncode:
        pytest.skip("this system gives a process no network of its own")
    work = f"from {__name__} import *; print(sorted(results_of(link_is_cut, RANKS).items()))"
    line = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c", work]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.strip() == "[(0, 'broken'), (1, 'broken'), (2, 'broken')]"


def test_a_rank_that_nobody_joins_gives_up_once_it_is_halted() -> None:
    looks = iter([False, False, True])
    opened, meeting = open_rendezvous("127.0.0.1"), Rendezvous(0, 2, "127.0.0.1", 0)
    with pytest.raises(Broken), join_group(meeting, lambda: next(looks), Connections(), opened):
        pass
