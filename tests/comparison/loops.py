"""Training algorithms as plain loops of torch, written from their papers and from the pages in `docs`.

They share no code with the project, and import torch alone. What is a convention, and not a result, is given to
them: which examples a partition has, the order of batches, the seeds, who takes part, and the order of arrival.
Tensors are held by name in dicts.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tests.comparison.combining import applied, reduced, weighted_mean
from tests.comparison.packing import packed
from tests.comparison.training import (
    Given,
    Named,
    Rows,
    State,
    Update,
    buffers_of,
    factor,
    gradient,
    gradient_of,
    local_update,
    network_of,
    params_of,
    trained,
    zeros,
)


def initial(given: Given) -> State:
    """The state before the first round: that of the network's seed, or the one that is given."""
    network = given.build(None)
    begun = given.begun or State(params_of(network), buffers_of(network))
    memory = dict(begun.memory)
    for algorithm, slot in (("scaffold", "control"), ("fed_dyn", "h"), ("mime_lite", "momentum")):
        if given.algorithm == algorithm:
            memory.setdefault(slot, zeros(begun.params))
    return State(begun.params, begun.buffers, memory, kept=copy.deepcopy(begun.kept))


class Failed(Exception):
    """No update of a round is sound."""


def synchronous(given: Given) -> Iterator[State]:
    """The state after each round, the initial one first."""
    state = initial(given)
    kept = state.kept
    yield state
    for round in range(1, given.rounds + 1):
        updates: dict[int, Update] = {}
        for partition in given.cohort(round):
            rows, mine = given.rows(round, partition), copy.deepcopy(kept)
            if given.algorithm == "sync_sgd":
                updates[partition] = gradient(given, state, round, partition, rows)
            else:
                updates[partition] = local_update(given, state, round, round, partition, rows, mine)
            if given.compress:
                seed, unsent = given.seed(round, partition), mine.setdefault("unsent", {})
                packed(given.compress, updates[partition], partition, seed, unsent)
            if updates[partition].sound:  # what a refused partition would keep is not kept
                kept = mine
        sound = [update for update in updates.values() if update.sound]
        if not sound:
            raise Failed
        state = applied(given, state, reduced(given, state, sound), round, len(sound))
        state.train_loss = {partition: update.train_loss for partition, update in updates.items()}
        state.own = {p: {**state.params, **head} for p, head in kept.get("fed_per", {}).items()}
        state.kept = copy.deepcopy(kept)
        yield state


def neighbours(topology: str | None, partition: int, partitions: int, exchange: int) -> set[int]:
    """A partition and those whose networks it averages with."""
    kind, *numbers = (topology or "none").split(":")
    if kind == "ring":
        return {(partition + move) % partitions for move in (-1, 0, 1)}
    if kind == "star":
        return set(range(partitions)) if partition == 0 else {0, partition}
    if kind == "exponential":
        places = [2**power for power in range(partitions) if 2**power <= partitions]
        return {partition} | {(partition + sign * place) % partitions for place in places for sign in (-1, 1)}
    if kind == "two_level":
        site, every = map(int, numbers)
        near = range(partition // site * site, (partition // site + 1) * site)
        return {*range(partitions)} if exchange % every == 0 else {*near}
    return {partition}


def decentralised(given: Given) -> Iterator[State]:
    """D-PSGD with Metropolis weights: average with the neighbours, then train."""
    state, n = initial(given), given.partitions
    kept = state.kept
    own = kept.setdefault("networks", {})
    yield state
    for round in range(1, given.rounds + 1):
        begun = [mixed(given, state, own, p, round - 1) for p in range(n)]
        updates, losses = [], {}
        for p in range(n):
            mine = copy.deepcopy(kept)
            start, rows = State(begun[p], state.buffers), given.rows(round, p)
            optimizers = mine.setdefault("optimizers", {})
            network, losses[p], _ = trained(given, start, round, round, p, rows, optimizers)
            update = Update(params_of(network), buffers_of(network), 1, losses[p])
            if update.sound:  # a refused partition keeps the network that it had
                kept = mine
                own = kept["networks"]
                own[p] = update.direction
                updates.append(update)
        if not updates:
            raise Failed
        means = [
            weighted_mean([1.0] * len(updates), each)
            for each in zip(*((u.direction, u.buffers) for u in updates), strict=True)
        ]
        state = State(*means, {}, losses, dict(own), copy.deepcopy(kept))
        yield state


def mixed(given: Given, state: State, own: Mapping[int, Named], partition: int, exchange: int) -> Named:
    """What a partition begins a round with: the mean of its own network and of its neighbours'."""
    if not own:
        return state.params
    around = {p: neighbours(given.topology, p, given.partitions, exchange) for p in range(given.partitions)}
    near = around[partition]
    weights = {p: 1 / max(len(near), len(around[p])) for p in near - {partition}}
    weights[partition] = 1 - math.fsum(weights.values())
    networks = {p: own.get(p, state.params) for p in weights}
    return {name: torch.stack([w * networks[p][name] for p, w in weights.items()]).sum(0) for name in state.params}


def asynchronous(given: Given) -> Iterator[State]:
    """The server's state after each round, with pushes in the order in which they arrived."""
    states, steps = [initial(given)], [0]
    kept = states[0].kept
    yield states[0]
    for round, arrivals in enumerate(given.arrivals, 1):
        before, updates, losses = states[-1], [], {}
        for partition, push, version in arrivals:
            staleness, most = steps[-1] - steps[version], given.get("max_staleness")
            update = pushed(given, states[version], push, version + 1, partition, kept)
            if given.compress:
                seed, unsent = given.seed(push, partition), kept.setdefault("unsent", {})
                packed(given.compress, update, partition, seed, unsent)
            losses[partition] = update.train_loss
            late = staleness > (most or 0) if given["stale"] == "scale" else most is not None and staleness > most
            if late and given["stale"] == "scale":
                update.direction = {k: d / (1 + staleness) for k, d in update.direction.items()}
            if update.sound and not (late and given["stale"] == "drop"):
                updates.append(update)
        state = before
        if updates:
            state = applied(given, before, reduced(given, before, updates), round, len(updates))
        states.append(State(state.params, state.buffers, state.memory, losses, kept=copy.deepcopy(kept)))
        steps.append(steps[-1] + bool(updates))
        yield states[-1]


def pushed(given: Given, fetched: State, push: int, round: int, partition: int, kept: dict[str, Any]) -> Update:
    """What a partition pushes, from the state that it fetched and what it keeps."""
    rows, own = given.rows(1, partition), kept.setdefault("own", {})
    if given.algorithm == "async_sgd":
        return gradient(given, fetched, push, partition, rows)
    if given.algorithm == "fed_buff":
        return local_update(given, fetched, push, round, partition, rows, kept)
    if given.algorithm == "easgd":
        mine, elasticity = own.get(partition, fetched.params), given["elasticity"] or 0.9 / given.partitions
        move = {k: elasticity * (x - fetched.params[k]) for k, x in mine.items()}
        optimizers, start = kept.setdefault("optimizers", {}), State(mine, fetched.buffers)
        network, loss, _ = trained(given, start, push, round, partition, rows, optimizers, move=move)
        own[partition] = params_of(network)
        return Update({k: -m for k, m in move.items()}, buffers_of(network), len(rows), loss)
    if (push - 1) * given["push_every"] % given["fetch_every"] == 0:
        own.pop(partition, None)
    return downpour(given, fetched, push, round, partition, rows, own)


def downpour(
    given: Given, fetched: State, push: int, round: int, partition: int, rows: Rows, own: dict[int, Named]
) -> Update:
    """The sum of the gradients of a replica's steps."""
    seed, rate = given.seed(push, partition), given["lr"] * factor(given["lr_schedule"], given["warmup"], round)
    network = network_of(given, own.get(partition, fetched.params), fetched.buffers)
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    sums, losses, seen = zeros(fetched.params), [], 0
    torch.manual_seed(seed)
    for step, places in enumerate(given.batches(len(rows), given["batch_size"], given["push_every"], seed)):
        network.zero_grad()
        loss = given.loss_of(network, given.prepared([rows[place] for place in places], seed, step))
        loss.backward()
        with torch.no_grad():
            for name, p in named.items():
                sums[name] += gradient_of(p)
                p.sub_(rate * gradient_of(p))
        losses.append(loss.item())
        seen += len(places)
    own[partition] = params_of(network)
    return Update(sums, buffers_of(network), seen, math.fsum(losses) / len(losses))


def run(given: Given) -> Iterator[State]:
    if given.arrivals:
        return asynchronous(given)
    return decentralised(given) if given.algorithm == "d_psgd" else synchronous(given)


def of_partitions(rows: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """The mean over the tenth of the partitions with the highest losses, and the deviation over all."""
    ordered = sorted(rows.values(), key=lambda row: -row["loss"])
    worst = ordered[: math.ceil(0.1 * len(ordered))]
    found: dict[str, float] = {}
    for name in {name for row in ordered for name in row}:  # a deviation of one example is none
        if values := [row[name] for row in worst if name in row]:
            found[f"worst_{name}"] = statistics.fmean(values)
        found[f"spread_{name}"] = statistics.pstdev([row[name] for row in ordered if name in row])
    return found
