"""Plain loops: how updates become one, and how the server steps along it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests.comparison.training import Given, Named, State, Update, factor, minus, zeros


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
    rest = {name: torch.stack([each[name] for each in tensors]) for name in tensors[0] if name not in floats}
    found = {name: stack.sort(0).values[middle] for name, stack in rest.items()}
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
    chosen = torch.stack(selected).sort(0).values  # of two that are as near, as rounded ones may be, the smaller
    nearest = (chosen - median(chosen)).abs().argsort(dim=0, stable=True)[: len(points) - 4 * f]
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
        parts = [
            centered(lambda p: ROBUST[kind](p, *map(int, numbers)), of) for of in (directions, buffers, extras)
        ]
        return Update(parts[0], parts[1], 1, 0.0, parts[2])
    weights = [float(u.weight) if kind != "plain_mean" else 1.0 for u in updates]
    if kind == "clipped_mean":
        directions = [clipped(direction, float(numbers[0])) for direction in directions]
    if kind == "matched":
        return matched(given, state, updates)
    mean = Update(
        *(weighted_mean(weights, of) for of in (directions, buffers)), 1, 0.0, weighted_mean(weights, extras)
    )
    told, n = [u.told for u in updates], math.fsum(weights)
    if given.algorithm == "fed_nova":  # tau_eff times the mean of d_i / tau_i
        steps = math.fsum(w / n * t["steps"] for w, t in zip(weights, told, strict=True))
        by_step = [
            {k: d * steps / t["steps"] for k, d in u.direction.items()} for u, t in zip(updates, told, strict=True)
        ]
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
        best = list(
            max(itertools.permutations(units), key=lambda order: sum(float(score[i, order[i]]) for i in units))
        )
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
        ahead = {k: step[k] + options["momentum"] * v for k, v in velocity.items()}
        step = ahead if options["nesterov"] else velocity
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
