"""What ranks of a process group say to each other in a round, by ranks: bytes, and seconds of each rank.

    python -m tests.benchmarks.scaling.ranks [--elements 300000] [--rounds 20] [--network]

Ranks are processes of this machine that tell each other an update and reduce: each all of it, or each its share,
of which it then tells the others. With `--network` what they say is sent and not put into memory that they share.
Not a test: it asserts nothing. It prints medians over rounds, the most over ranks, and of CPU the mean over ranks.
"""

from __future__ import annotations

import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer

from roundweave import Mean, State, Update, reduce_all
from roundweave.tasks.process_group.channels import Network
from roundweave.tasks.process_group.group import Connections, Group, Rendezvous, join_group, open_rendezvous
from tests.benchmarks.rounds import medians, show

STATE = State({})


def nothing(group: Group, update: Update) -> None:
    """As a round's halted and scores: a message of a few bytes."""
    group.all_gather(0)


def whole(group: Group, update: Update) -> Update:
    """Each rank receives all updates and reduces them."""
    return reduce_all(Mean(), STATE, group.all_gather(update))


def in_shares(group: Group, update: Update) -> Update:
    """Each rank receives a share of all updates, reduces it, and receives the others' reduced shares."""
    shares = update.direction["float32"].tensor_split(group.ranks)
    sent = [Update({"float32": share}, weight=update.weight) for share in shares]
    reduced = group.all_gather(reduce_all(Mean(), STATE, group.scatter(sent)))
    return Update({"float32": torch.cat([each.direction["float32"] for each in reduced])})


KINDS = {"a number": nothing, "updates, whole": whole, "updates, in shares": in_shares}


def timed(group: Group, kind: str, elements: int, rounds: int) -> tuple[float, float, int]:
    """Seconds by the clock and of CPU time, and bytes that this rank has for others, each of a round."""
    torch.set_num_threads(1)
    update = Update({"float32": torch.full((elements,), float(group.rank))}, weight=1)
    times: list[tuple[float, float]] = []
    for round in range(rounds + 2):
        if round == 2:
            before = group.sent
        began = time.perf_counter(), time.process_time()
        KINDS[kind](group, update)
        times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    clock, processor = medians(times[2:])
    return clock, processor, (group.sent - before) // rounds


def rank_of(meeting: Rendezvous, network: bool, work: Callable[[Group, str], Any], answers: Any) -> None:
    """A process's whole work."""
    opened = open_rendezvous(meeting.host) if meeting.rank == 0 else None
    if opened is not None:
        answers.put(opened.port)
        meeting = replace(meeting, port=opened.port)
    with join_group(meeting, lambda: False, Connections(), opened) as group:
        if network:
            group._channels = [Network(group.rank, group._all_ranks)]
        answers.put([work(group, kind) for kind in KINDS])


def measured(ranks: int, network: bool, elements: int, rounds: int) -> list[list[tuple[float, float, int]]]:
    """What each rank took for each kind."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()
    work = functools.partial(timed, elements=elements, rounds=rounds)
    port, processes = 0, []
    for rank in range(ranks):
        meeting = Rendezvous(rank, ranks, "127.0.0.1", port)
        processes.append(context.Process(target=rank_of, args=(meeting, network, work, answers)))
        processes[-1].start()
        port = port or answers.get()
    found = [answers.get() for _ in range(ranks)]
    for process in processes:
        process.join()
    return found


def rows(chosen: list[int], elements: int, rounds: int, network: bool) -> Iterator[list[str]]:
    for ranks in chosen:
        found = measured(ranks, network, elements, rounds)
        for kind, each in zip(KINDS, zip(*found, strict=True), strict=True):
            clock, processor, sent = zip(*each, strict=True)
            numbers = max(sent) / 1e6, max(clock) * 1e3, statistics.mean(processor) * 1e3
            yield [str(ranks), kind, *(f"{number:.2f}" for number in numbers)]


def main(
    ranks: Annotated[list[int], typer.Option()] = [2, 4, 8, 16],  # noqa: B006
    elements: int = 300_000,
    rounds: int = 20,
    network: bool = False,
) -> None:
    """Print the table."""
    way = "over the network" if network else "in shared memory"
    heads = ("ranks", "what", "MB a rank", "ms", "CPU ms a rank")
    show(heads, rows(ranks, elements, rounds, network), f"{elements} elements, {way}")


if __name__ == "__main__":
    typer.run(main)
