"""Training algorithms as plain loops of torch, written from their papers and from the pages in `docs`.

They share no code with the project, and import torch alone. What is a convention, and not a result, is given to
them: which examples a partition has, the order of batches, the seeds, who takes part, and the order of arrival.
Tensors are held by name in dicts.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Named = dict[str, torch.Tensor]


@dataclass
class Given:
    """What a loop is given.

    `build` makes the network with the weights of a seed, None for those of the run. `loss` is the mean loss of a
    batch, `counted` over how many items. `rows` are the examples of each partition in a round, and `batches` the
    places of each batch among so many examples. `arrivals` are (partition, push, version) by round.
    """

    algorithm: str
    options: Mapping[str, Any]
    rounds: int
    partitions: int
    build: Callable[[int | None], nn.Module]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    counted: Callable[[torch.Tensor], int]
    call: Callable[[nn.Module, Any], torch.Tensor]
    batch: Callable[[Any], tuple[Any, torch.Tensor]]
    rows: Callable[[int, int], torch.Tensor]
    batches: Callable[[int, int | None, int, int], list[torch.Tensor]]
    seed: Callable[[int, int], int]
    cohort: Callable[[int], Sequence[int]]
    reduce: str
    topology: str | None = None
    arrivals: Sequence[Sequence[tuple[int, int, int]]] = ()

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def get(self, option: str, default: Any = None) -> Any:
        return self.options.get(option, default)

    def loss_of(self, network: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        inputs, targets = self.batch(rows)
        return self.loss(self.call(network, inputs), targets)

    def items(self, rows: torch.Tensor) -> int:
        return self.counted(self.batch(rows)[1])


@dataclass
class State:
    """All of a network but what is frozen, the server's memory, and each partition's own number of the round."""

    params: Named
    buffers: Named
    memory: dict[str, Named] = field(default_factory=dict)
    train_loss: dict[int, float] = field(default_factory=dict)
    own: dict[int, Named] = field(default_factory=dict)


@dataclass
class Update:
    direction: Named
    buffers: Named
    weight: int
    train_loss: float
    extras: Named = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        every = [*self.direction.values(), *self.buffers.values(), *self.extras.values()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in every)


def params_of(network: nn.Module) -> Named:
    return {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}


def buffers_of(network: nn.Module) -> Named:
    return {name: b.detach().clone() for name, b in network.named_buffers() if name in network.state_dict()}


def network_of(given: Given, params: Named, buffers: Named) -> nn.Module:
    """A network in training mode with these weights."""
    network = given.build(None).train()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in params:
                parameter.copy_(params[name])
        for name, buffer in network.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
    return network


def minus(left: Named, right: Named) -> Named:
    return {name: tensor - right[name] for name, tensor in left.items()}


def zeros(like: Named) -> Named:
    return {name: torch.zeros_like(tensor) for name, tensor in like.items()}


# Schedules.


def factor(shape: str, warmup: float, round: int, step: int = 0, steps: int = 1) -> float:
    """The factor on a learning rate at a step of a round of so many, all counted as steps of one long run."""
    kind, *numbers = shape.split(":")
    done = (round - 1) * steps + step
    grown = min(1.0, (done + 1) / (warmup * steps + 1))
    if kind == "constant":
        return grown
    if kind == "step":
        return grown * float(numbers[1]) ** ((round - 1) // int(numbers[0]))
    long = int(numbers[0]) * steps
    part = min(done, long - 1) / long
    return grown * (0.5 * (1 + math.cos(math.pi * part)) if kind == "cosine" else 1 - part)


def rates(given: Given, round: int, steps: int) -> list[float]:
    shape, warmup = given["lr_schedule"], given["warmup"]
    if given.get("lr_schedule_by", "round") == "round":
        return [given["lr"] * factor(shape, warmup, round)] * steps
    return [given["lr"] * factor(shape, warmup, round, step, steps) for step in range(steps)]


# Local training.


def step_count(given: Given, examples: int) -> int:
    if given.get("local_steps"):
        return given["local_steps"]
    each = given["batch_size"] * given["accumulate"] if given["batch_size"] else examples
    return (given.get("local_epochs") or 1) * math.ceil(examples / each)


def optimizer_of(given: Given, network: nn.Module) -> torch.optim.Optimizer:
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    kind = getattr(torch.optim, given.get("optimizer", "SGD"))
    options = dict(given.get("optimizer_options") or {})
    options |= {name: given[name] for name in ("momentum", "nesterov") if given.get(name)}
    if not given.get("no_decay_on"):
        return kind(trained.values(), lr=given["lr"], **options)
    norms = [m for m in network.modules() if "Norm" in type(m).__name__]
    of_norms = {id(p) for m in norms for p in m.parameters(recurse=False)}

    def kept(name: str, p: nn.Parameter) -> bool:
        bias = "bias" in name.split(".")[-1] and "biases" in given["no_decay_on"]
        return bias or (id(p) in of_norms and "norms" in given["no_decay_on"])

    decay, apart = ([p for n, p in trained.items() if kept(n, p) == answer] for answer in (False, True))
    return kind([{"params": decay}, {"params": apart, "weight_decay": 0.0}], lr=given["lr"], **options)


def backward(given: Given, network: nn.Module, rows: torch.Tensor) -> float:
    """The mean loss of a step's examples, and its gradient; in pieces of `batch_size` where they accumulate."""
    if given.get("accumulate", 1) == 1:
        loss = given.loss_of(network, rows)
        loss.backward()
        return loss.item()
    total, sum_of_losses = given.items(rows), 0.0
    for piece in rows.split(given["batch_size"]):
        items = given.items(piece)
        if items or not total:
            loss = given.loss_of(network, piece) * (items / (total or 1))
            loss.backward()
            sum_of_losses += loss.item()
    return sum_of_losses


Penalty = Callable[[Mapping[str, nn.Parameter]], torch.Tensor]


def trained(
    given: Given,
    start: State,
    number: int,
    round: int,
    partition: int,
    rows: torch.Tensor,
    kept: dict[int, Any],
    penalty: Penalty | None = None,
    move: Named | None = None,
) -> tuple[nn.Module, float, float]:
    """Train on a partition: the network, the mean loss of its steps, and the sum of their learning rates.

    `penalty` is added to the loss, of which its gradient is taken by autograd. `kept` has the optimizers' states.
    """
    seed = given.seed(number, partition)
    network = network_of(given, start.params, start.buffers)
    if given.get("init") == "per-partition" and round == 1:
        network = given.build(seed).train()
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    optimizer = optimizer_of(given, network)
    if given.get("optimizer_state") == "carried" and partition in kept:
        optimizer.load_state_dict(copy.deepcopy(kept[partition]))
    size = given["batch_size"] and given["batch_size"] * given["accumulate"]
    steps = step_count(given, len(rows))
    losses, walked = [], rates(given, round, steps)
    torch.manual_seed(seed)
    for step, (places, rate) in enumerate(zip(given.batches(len(rows), size, steps, seed), walked, strict=True)):
        optimizer.zero_grad()
        losses.append(backward(given, network, rows[places]))
        if penalty is not None:
            penalty(named).backward()
        if given.get("clip_norm"):
            nn.utils.clip_grad_norm_(named.values(), given["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        if move is not None and step == 0:
            with torch.no_grad():
                for name, by in move.items():
                    named[name] -= by
    kept[partition] = optimizer.state_dict()
    return network, math.fsum(losses) / steps, math.fsum(walked)


def inner(term: Named) -> Penalty:
    """A penalty whose gradient is `term`."""
    return lambda named: sum(((term[name] * p).sum() for name, p in named.items()), torch.zeros(()))


def squared(weight: float, center: Named) -> Penalty:
    """weight / 2 times the squared distance from a center."""
    return lambda named: weight / 2 * sum(((p - center[name]) ** 2).sum() for name, p in named.items())


def mean_loss(given: Given, state: State, rows: torch.Tensor) -> float:
    """The mean loss of all of a partition's examples, in evaluation mode."""
    with torch.no_grad():
        return given.loss_of(network_of(given, state.params, state.buffers).eval(), rows).item()


# What a partition sends, by algorithm. `kept` is what it keeps.


def local_update(
    given: Given, state: State, number: int, round: int, partition: int, rows: torch.Tensor, kept: dict[str, Any]
) -> Update:
    name, memory = given.algorithm, state.memory
    own = kept.setdefault(name, {})
    penalty: Penalty | None = None
    if name == "fed_prox":
        penalty = squared(given["mu"], state.params)
    if name == "scaffold":
        control = own.get(partition, zeros(state.params))
        penalty = inner(minus(memory["control"], control))
    if name == "fed_dyn":
        drift = own.get(partition, zeros(state.params))
        pull, push = squared(given["alpha"], state.params), inner(drift)
        penalty = lambda named: pull(named) - push(named)  # noqa: E731
    if name == "mime_lite":
        penalty = inner({key: given["beta"] * m for key, m in memory["momentum"].items()})
    optimizers = kept.setdefault("optimizers", {})
    network, loss, walked = trained(given, state, number, round, partition, rows, optimizers, penalty)
    update = Update(minus(state.params, params_of(network)), buffers_of(network), len(rows), loss)
    if name == "scaffold":  # option II: c_i+ = c_i - c + (x - y_i) / (K lr)
        change = {key: d / walked - memory["control"][key] for key, d in update.direction.items()}
        own[partition] = {key: control[key] + change[key] for key in change}
        update.extras = change
    if name == "fed_dyn":
        own[partition] = {key: drift[key] + given["alpha"] * d for key, d in update.direction.items()}
    if name == "mime_lite":  # the full gradient at the server's network
        at_start = network_of(given, state.params, state.buffers)
        given.loss_of(at_start, rows).backward()
        update.extras = {key: gradient_of(p) for key, p in at_start.named_parameters() if p.requires_grad}
    if name == "fed_nova":
        update.told = {"steps": walked / given["lr"]}
    if name in ("q_fed_avg", "afl"):
        update.told = {"loss": mean_loss(given, state, rows), "rate": walked / step_count(given, len(rows))}
    if name == "afl":
        update.told["log_weight"] = own.get(partition, 0.0)
        own[partition] = update.told["log_weight"] + given["ascent"] * update.told["loss"]
    return update


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def gradient(given: Given, state: State, number: int, partition: int, rows: torch.Tensor) -> Update:
    """The gradient of the mean loss over a partition, or over a batch of it."""
    seed, size = given.seed(number, partition), given["batch_size"]
    network = network_of(given, state.params, state.buffers)
    torch.manual_seed(seed)
    batch = rows[given.batches(len(rows), size, 1, seed)[0]]
    loss = given.loss_of(network, batch)
    loss.backward()
    direction = {name: gradient_of(p) for name, p in network.named_parameters() if p.requires_grad}
    weight = len(rows) if size else given.items(rows)
    return Update(direction, buffers_of(network), weight, loss.item())


# Reduces.


def weighted_mean(weights: Sequence[float], tensors: Sequence[Named]) -> Named:
    """The weighted mean of floats, and the maximum of all else."""

    def one(name: str) -> torch.Tensor:
        stack = torch.stack([each[name] for each in tensors])
        if not stack.is_floating_point():
            return stack.amax(0) if stack.dtype != torch.bool else stack.any(0)
        shares = torch.tensor(weights, dtype=stack.dtype) / math.fsum(weights)
        return torch.tensordot(shares, stack, 1)

    return {name: one(name) for name in tensors[0]}


def centered(center: Callable[[torch.Tensor], torch.Tensor], tensors: Sequence[Named]) -> Named:
    """The robust center of floats, all as one vector, and the lower median of all else."""
    floats = [name for name, tensor in tensors[0].items() if tensor.is_floating_point()]
    middle = (len(tensors) - 1) // 2
    found = {
        name: torch.stack([each[name] for each in tensors]).sort(0).values[middle]
        for name in tensors[0]
        if name not in floats
    }
    if floats:
        points = torch.stack([torch.cat([each[name].flatten() for name in floats]) for each in tensors])
        parts = center(points).split([tensors[0][name].numel() for name in floats])
        found |= {name: part.view_as(tensors[0][name]) for name, part in zip(floats, parts, strict=True)}
    return found


def median(points: torch.Tensor) -> torch.Tensor:
    return points.quantile(0.5, 0)


def trimmed_mean(points: torch.Tensor, f: int) -> torch.Tensor:
    return points.sort(0).values[f : len(points) - f].mean(0)


def krum_order(points: torch.Tensor, f: int) -> list[int]:
    """The points by their sums of squared distances to the n - f - 2 nearest others, the smallest first."""
    scores = []
    for i, point in enumerate(points):
        others = sorted(float(((point - other) ** 2).sum()) for j, other in enumerate(points) if j != i)
        scores.append(sum(others[: max(1, len(points) - f - 2)]))
    return sorted(range(len(points)), key=lambda i: scores[i])


def krum(points: torch.Tensor, f: int, keep: int = 1) -> torch.Tensor:
    return points[krum_order(points, f)[:keep]].mean(0)


def bulyan(points: torch.Tensor, f: int) -> torch.Tensor:
    left, selected = list(points), []
    while len(selected) < len(points) - 2 * f:
        selected.append(left.pop(krum_order(torch.stack(left), f)[0]))
    chosen = torch.stack(selected)
    nearest = (chosen - median(chosen)).abs().argsort(0)[: len(points) - 4 * f]
    return chosen.gather(0, nearest).mean(0)


def geometric_median(points: torch.Tensor, steps: int = 100, tolerance: float = 1e-5) -> torch.Tensor:
    """Weiszfeld's steps from the (lower) median of each coordinate, distances not below 1e-3 of their median."""
    center = points.median(0).values
    for _ in range(steps):
        distances = (points - center).norm(dim=1)
        scale = distances.median()
        if scale == 0:
            break
        weights = 1 / distances.clamp(min=1e-3 * scale)
        before, center = center, (weights[:, None] * points).sum(0) / weights.sum()
        if (center - before).norm() <= tolerance * scale:
            break
    return center


ROBUST: dict[str, Callable[..., torch.Tensor]] = {
    "median": median,
    "trimmed_mean": trimmed_mean,
    "krum": krum,
    "bulyan": bulyan,
    "geometric_median": geometric_median,
}


def reduced(given: Given, state: State, updates: Sequence[Update]) -> Update:
    """One update of all, by the algorithm's own mean or another reduce."""
    kind, *numbers = given.reduce.split(":")
    directions, buffers, extras = ([getattr(u, n) for u in updates] for n in ("direction", "buffers", "extras"))
    if kind in ROBUST:
        parts = [centered(lambda p: ROBUST[kind](p, *map(int, numbers)), of) for of in (directions, buffers, extras)]
        return Update(parts[0], parts[1], 1, 0.0, parts[2])
    weights = [float(u.weight) if kind != "plain_mean" else 1.0 for u in updates]
    if kind == "clipped_mean":
        directions = [clipped(direction, float(numbers[0])) for direction in directions]
    if kind == "matched":
        return matched(given, state, updates)
    mean = Update(*(weighted_mean(weights, of) for of in (directions, buffers)), 1, 0.0, weighted_mean(weights, extras))
    told, n = [u.told for u in updates], math.fsum(weights)
    if given.algorithm == "fed_nova":  # tau_eff times the mean of d_i / tau_i
        steps = math.fsum(w / n * t["steps"] for w, t in zip(weights, told, strict=True))
        by_step = [{k: d * steps / t["steps"] for k, d in u.direction.items()} for u, t in zip(updates, told, strict=True)]
        mean.direction = weighted_mean(weights, by_step)
    if given.algorithm == "q_fed_avg":
        mean.direction = q_fair(given["q"], updates)
    if given.algorithm == "afl":
        largest = max(t["log_weight"] for t in told)
        mean.direction = weighted_mean([math.exp(t["log_weight"] - largest) for t in told], directions)
    return mean


def clipped(direction: Named, norm: float) -> Named:
    length = math.sqrt(math.fsum(float((d**2).sum()) for d in direction.values()))
    return {name: d * min(1.0, norm / length) if length else d for name, d in direction.items()}


def q_fair(q: float, updates: Sequence[Update]) -> Named:
    """The sum of F^q L d over that of q F^(q-1) |L d|^2 + L F^q, with L = 1 / lr."""
    sums, divisor = zeros(updates[0].direction), 0.0
    for update in updates:
        loss, lipschitz = update.told["loss"], 1 / update.told["rate"]
        delta = {name: lipschitz * d for name, d in update.direction.items()}
        sums = {name: total + loss**q * delta[name] for name, total in sums.items()}
        squares = math.fsum(float((d**2).sum()) for d in delta.values())
        divisor += q * loss ** (q - 1) * squares + lipschitz * loss**q
    return {name: total / divisor for name, total in sums.items()}


def matched(given: Given, state: State, updates: Sequence[Update]) -> Update:
    """Permute the hidden units of an `mlp` so that its weights are nearest to the reference's, then average.

    The best permutation is found among all of them.
    """
    arrived = [minus(state.params, update.direction) for update in updates]
    reference = arrived[0] if given["match_to"] == "first" else state.params
    moved = []
    for each in arrived:
        score = sum(
            (
                reference["fc1.weight"] @ each["fc1.weight"].T,
                torch.outer(reference["fc1.bias"], each["fc1.bias"]),
                reference["fc2.weight"].T @ each["fc2.weight"],
            )
        )
        units = range(len(score))
        best = list(max(itertools.permutations(units), key=lambda order: sum(float(score[i, order[i]]) for i in units)))
        order = {"fc1.weight": each["fc1.weight"][best], "fc1.bias": each["fc1.bias"][best]}
        moved.append(each | order | {"fc2.weight": each["fc2.weight"][:, best]})
    directions = [minus(state.params, each) for each in moved]
    if given["average"] == "median":
        return Update(centered(median, directions), {}, 1, 0.0)
    return Update(weighted_mean([float(u.weight) for u in updates], directions), {}, 1, 0.0)


# Outer optimizers.


def applied(given: Given, state: State, update: Update, round: int, accepted: int) -> State:
    """The next state; the rates of the outer optimizer's options may begin with `outer_`."""
    after = State(dict(state.params), update.buffers or state.buffers, dict(state.memory))
    if given.algorithm == "fed_dyn":
        share = accepted / given.partitions
        h = {k: h + share * given["alpha"] * update.direction[k] for k, h in state.memory["h"].items()}
        after.params = {k: p - update.direction[k] - h[k] / given["alpha"] for k, p in state.params.items()}
        after.memory = {"h": h}
        return after
    before = "outer_" if "outer_lr" in given.options else ""
    if not before and given.algorithm not in ("sync_sgd", "async_sgd"):
        options: dict[str, Any] = {"lr": 1.0, "lr_schedule": "constant", "warmup": 0}
    else:
        names = ("lr", "lr_schedule", "warmup", "momentum", "nesterov", "beta1", "beta2", "tau")
        options = {name: given[before + name] for name in names if before + name in given.options}
    rate = options["lr"] * factor(options["lr_schedule"], options["warmup"], round)
    step = update.direction
    if "tau" in options:
        step, after.memory = adaptive(given, options, state, update)
    elif options.get("momentum"):
        velocity = state.memory.get("velocity") or zeros(state.params)
        velocity = {k: options["momentum"] * v + step[k] for k, v in velocity.items()}
        after.memory["velocity"] = velocity
        step = {k: step[k] + options["momentum"] * v for k, v in velocity.items()} if options["nesterov"] else velocity
    after.params = {name: p - rate * step[name] for name, p in state.params.items()}
    if given.algorithm == "scaffold":  # c moves by |S| / N of the mean change
        share = accepted / given.partitions
        after.memory["control"] = {k: c + share * update.extras[k] for k, c in state.memory["control"].items()}
    if given.algorithm == "mime_lite":
        m = state.memory["momentum"]
        after.memory["momentum"] = {k: given["beta"] * m[k] + update.extras[k] for k in m}
    return after


def adaptive(
    given: Given, options: Mapping[str, Any], state: State, update: Update
) -> tuple[Named, dict[str, Named]]:
    """The step of FedAdam, FedYogi or FedAdagrad, without the rate, and its two moments."""
    tau, beta = options["tau"], options["beta1"]
    first = state.memory.get("first") or zeros(state.params)
    second = state.memory.get("second") or {k: torch.full_like(p, tau**2) for k, p in state.params.items()}
    first = {k: beta * m + (1 - beta) * update.direction[k] for k, m in first.items()}
    squares = {k: d**2 for k, d in update.direction.items()}
    if "beta2" not in options:
        second = {k: v + squares[k] for k, v in second.items()}
    elif given["apply"] == "yogi":
        share = 1 - options["beta2"]
        second = {k: v - share * squares[k] * torch.sign(v - squares[k]) for k, v in second.items()}
    else:
        second = {k: options["beta2"] * v + (1 - options["beta2"]) * squares[k] for k, v in second.items()}
    step = {k: m / (second[k].sqrt() + tau) for k, m in first.items()}
    return step, {**state.memory, "first": first, "second": second}


# The loops.


def initial(given: Given) -> State:
    network = given.build(None)
    params, memory = params_of(network), dict[str, Named]()
    for algorithm, slot in (("scaffold", "control"), ("fed_dyn", "h"), ("mime_lite", "momentum")):
        if given.algorithm == algorithm:
            memory[slot] = zeros(params)
    return State(params, buffers_of(network), memory)


class Failed(Exception):
    """No update of a round is sound."""


def synchronous(given: Given) -> Iterator[State]:
    """The state after each round, the initial one first."""
    state, kept = initial(given), dict[str, Any]()
    yield state
    for round in range(1, given.rounds + 1):
        updates: dict[int, Update] = {}
        for partition in given.cohort(round):
            rows, mine = given.rows(round, partition), copy.deepcopy(kept)
            if given.algorithm == "sync_sgd":
                updates[partition] = gradient(given, state, round, partition, rows)
            else:
                updates[partition] = local_update(given, state, round, round, partition, rows, mine)
            if updates[partition].sound:  # what a refused partition would keep is not kept
                kept = mine
        sound = [update for update in updates.values() if update.sound]
        if not sound:
            raise Failed
        state = applied(given, state, reduced(given, state, sound), round, len(sound))
        state.train_loss = {partition: update.train_loss for partition, update in updates.items()}
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
        return set(range(partitions)) if exchange % every == 0 else {p for p in range(partitions) if p // site == partition // site}
    return {partition}


def decentralised(given: Given) -> Iterator[State]:
    """D-PSGD with Metropolis weights: average with the neighbours, then train."""
    state, kept, n = initial(given), dict[str, Any](), given.partitions
    own = [state.params] * n
    yield state
    for round in range(1, given.rounds + 1):
        around = [neighbours(given.topology, p, n, round - 1) for p in range(n)]
        begun = []
        for p in range(n):
            weights = {q: 1 / max(len(around[p]), len(around[q])) for q in around[p] - {p}}
            weights[p] = 1 - sum(weights.values())
            begun.append({k: sum(w * own[q][k] for q, w in weights.items()) for k in state.params} if round > 1 else own[p])
        buffers, losses = [], {}
        for p in range(n):
            start = State(begun[p], state.buffers)
            rows = given.rows(round, p)
            network, losses[p], _ = trained(given, start, round, round, p, rows, kept)
            own[p], each = params_of(network), buffers_of(network)
            buffers.append(each)
        ones = [1.0] * n
        state = State(weighted_mean(ones, own), weighted_mean(ones, buffers), {}, losses, dict(enumerate(own)))
        yield state


def asynchronous(given: Given) -> Iterator[State]:
    """The server's state after each round, with pushes in the order in which they arrived."""
    states, steps, kept = [initial(given)], [0], dict[str, Any]()
    yield states[0]
    for round, arrivals in enumerate(given.arrivals, 1):
        before, updates, losses = states[-1], [], {}
        for partition, push, version in arrivals:
            staleness, most = steps[-1] - steps[version], given.get("max_staleness")
            update = pushed(given, states[version], push, version + 1, partition, kept)
            losses[partition] = update.train_loss
            late = staleness > (most or 0) if given["stale"] == "scale" else most is not None and staleness > most
            if late and given["stale"] == "scale":
                update.direction = {k: d / (1 + staleness) for k, d in update.direction.items()}
            if update.sound and not (late and given["stale"] == "drop"):
                updates.append(update)
        state = before
        if updates:
            state = applied(given, before, reduced(given, before, updates), round, len(updates))
        states.append(State(state.params, state.buffers, state.memory, losses))
        steps.append(steps[-1] + bool(updates))
        yield states[-1]


def pushed(
    given: Given, fetched: State, push: int, round: int, partition: int, kept: dict[str, Any]
) -> Update:
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
    given: Given, fetched: State, push: int, round: int, partition: int, rows: torch.Tensor, own: dict[int, Named]
) -> Update:
    """The sum of the gradients of a replica's steps."""
    seed, rate = given.seed(push, partition), given["lr"] * factor(given["lr_schedule"], given["warmup"], round)
    network = network_of(given, own.get(partition, fetched.params), fetched.buffers)
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    sums, losses, seen = zeros(fetched.params), [], 0
    torch.manual_seed(seed)
    for places in given.batches(len(rows), given["batch_size"], given["push_every"], seed):
        network.zero_grad()
        loss = given.loss_of(network, rows[places])
        loss.backward()
        with torch.no_grad():
            for name, p in named.items():
                sums[name] += gradient_of(p)
                p -= rate * gradient_of(p)
        losses.append(loss.item())
        seen += len(places)
    own[partition] = params_of(network)
    return Update(sums, buffers_of(network), seen, math.fsum(losses) / len(losses))


def run(given: Given) -> Iterator[State]:
    if given.arrivals:
        return asynchronous(given)
    return decentralised(given) if given.algorithm == "d_psgd" else synchronous(given)


# Scores.


def of_partitions(rows: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """The mean over the tenth of the partitions with the highest losses, and the deviation over all."""
    ordered = sorted(rows.values(), key=lambda row: -row["loss"])
    worst = ordered[: math.ceil(0.1 * len(ordered))]
    found: dict[str, float] = {}
    for name in ordered[0]:
        found[f"worst_{name}"] = statistics.fmean(row[name] for row in worst)
        found[f"spread_{name}"] = statistics.pstdev([row[name] for row in ordered])
    return found
