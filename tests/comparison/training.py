"""Plain loops: what is given to them, and what a partition does, in each of the algorithms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

Named = dict[str, torch.Tensor]

Rows = list[Any]
"""Examples, of which `Given.batch` makes inputs and targets."""


@dataclass
class Given:
    """What a loop is given.

    `build` makes the network with the weights of a seed, None for those of the run. `loss` is the mean loss of a
    batch, `counted` over how many items. `rows` say which examples a partition has in a round, `prepared` gives
    those of the batch of a number with what a seed draws, `judged` as they are scored, and `batches` the places of
    each batch among so many examples. `arrivals` are (partition, push, version) by round. `compress` says how
    directions are sent, and `begun` is the state to begin with.
    """

    algorithm: str
    options: Mapping[str, Any]
    rounds: int
    partitions: int
    build: Callable[[int | None], nn.Module]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    counted: Callable[[torch.Tensor], int]
    call: Callable[[nn.Module, Any], Any]
    batch: Callable[[Rows], tuple[Any, torch.Tensor]]
    rows: Callable[[int, int], Rows]
    prepared: Callable[[Rows, int, int], Rows]
    judged: Callable[[Rows], Rows]
    batches: Callable[[int, int | None, int, int], list[list[int]]]
    seed: Callable[[int, int], int]
    cohort: Callable[[int], Sequence[int]]
    reduce: str
    topology: str | None = None
    arrivals: Sequence[Sequence[tuple[int, int, int]]] = ()
    compress: str | None = None
    begun: State | None = None

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def get(self, option: str, default: Any = None) -> Any:
        return self.options.get(option, default)

    def loss_of(self, network: nn.Module, rows: Rows) -> torch.Tensor:
        inputs, targets = self.batch(rows)
        return self.loss(self.call(network, inputs), targets)

    def items(self, rows: Rows) -> int:
        return self.counted(self.batch(rows)[1])


@dataclass
class State:
    """All of a network but what is frozen, the server's memory, and each partition's own number of the round.

    `own` are networks of partitions' own, and `kept` is all that partitions keep.
    """

    params: Named
    buffers: Named
    memory: dict[str, Named] = field(default_factory=dict)
    train_loss: dict[int, float] = field(default_factory=dict)
    own: dict[int, Named] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)


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
    """The local optimizer, whose groups' rates are factors."""
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    named = given.get("optimizer", "SGD")
    if not isinstance(named, str):
        made: torch.optim.Optimizer = named.load()(network)
        return made
    kind = partial(getattr(torch.optim, named), lr=1.0)
    options = dict(given.get("optimizer_options") or {})
    options |= {name: given[name] for name in ("momentum", "nesterov") if given.get(name)}
    if not given.get("no_decay_on"):
        return kind(trained.values(), **options)
    norms = [m for m in network.modules() if "Norm" in type(m).__name__]
    of_norms = {id(p) for m in norms for p in m.parameters(recurse=False)}

    def kept(name: str, p: nn.Parameter) -> bool:
        bias = "bias" in name.rpartition(".")[2] and "biases" in given["no_decay_on"]
        return bias or (id(p) in of_norms and "norms" in given["no_decay_on"])

    decay, apart = ([p for n, p in trained.items() if kept(n, p) == answer] for answer in (False, True))
    return kind([{"params": decay}, {"params": apart, "weight_decay": 0.0}], **options)


def backward(given: Given, network: nn.Module, rows: Rows) -> float:
    """The mean loss of a step's examples, and its gradient; in pieces of `batch_size` where they accumulate."""
    if given.get("accumulate", 1) == 1:
        loss = given.loss_of(network, rows)
        loss.backward()
        return loss.item()
    total, sum_of_losses = given.items(rows), 0.0
    for first in range(0, len(rows), given["batch_size"]):
        piece = rows[first : first + given["batch_size"]]
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
    rows: Rows,
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
    factors = [group["lr"] for group in optimizer.param_groups]
    if given.get("optimizer_state") == "carried" and partition in kept:
        optimizer.load_state_dict(copy.deepcopy(kept[partition]))
    size = given["batch_size"] and given["batch_size"] * given["accumulate"]
    steps = step_count(given, len(rows))
    losses, walked = [], rates(given, round, steps)
    torch.manual_seed(seed)
    for step, (places, rate) in enumerate(zip(given.batches(len(rows), size, steps, seed), walked, strict=True)):
        optimizer.zero_grad()
        losses.append(backward(given, network, given.prepared([rows[place] for place in places], seed, step)))
        if penalty is not None:
            penalty(named).backward()
        if given.get("clip_norm"):
            nn.utils.clip_grad_norm_(named.values(), given["clip_norm"])
        for group, by in zip(optimizer.param_groups, factors, strict=True):
            group["lr"] = by * rate
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


def mean_loss(given: Given, state: State, rows: Rows) -> float:
    """The mean loss of all of a partition's examples, in evaluation mode."""
    with torch.no_grad():
        return given.loss_of(network_of(given, state.params, state.buffers).eval(), given.judged(rows)).item()


# What a partition sends, by algorithm. `kept` is what it keeps.


def local_update(
    given: Given, state: State, number: int, round: int, partition: int, rows: Rows, kept: dict[str, Any]
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
    optimizers, start = kept.setdefault("optimizers", {}), State(state.params, state.buffers)
    if name == "fed_per":  # the head is the partition's own
        start.params = {**state.params, **own.get(partition, {})}
    network, loss, walked = trained(given, start, number, round, partition, rows, optimizers, penalty)
    update = Update(minus(start.params, params_of(network)), buffers_of(network), len(rows), loss)
    if name == "fed_per":
        own[partition] = {key: p for key, p in params_of(network).items() if key.startswith(given["layer"])}
    if name == "scaffold":  # option II: c_i+ = c_i - c + (x - y_i) / (K lr)
        change = {key: d / walked - memory["control"][key] for key, d in update.direction.items()}
        own[partition] = {key: control[key] + change[key] for key in change}
        update.extras = change
    if name == "fed_dyn":
        own[partition] = {key: drift[key] + given["alpha"] * d for key, d in update.direction.items()}
    if name == "mime_lite":  # the full gradient at the server's network
        at_start = network_of(given, state.params, state.buffers)
        given.loss_of(at_start, given.prepared(rows, given.seed(number, partition), 0)).backward()
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


def gradient(given: Given, state: State, number: int, partition: int, rows: Rows) -> Update:
    """The gradient of the mean loss over a partition, or over a batch of it."""
    seed, size = given.seed(number, partition), given["batch_size"]
    network = network_of(given, state.params, state.buffers)
    torch.manual_seed(seed)
    batch = given.prepared([rows[place] for place in given.batches(len(rows), size, 1, seed)[0]], seed, 0)
    loss = given.loss_of(network, batch)
    loss.backward()
    direction = {name: gradient_of(p) for name, p in network.named_parameters() if p.requires_grad}
    weight = len(rows) if size else given.items(batch)
    return Update(direction, buffers_of(network), weight, loss.item())
