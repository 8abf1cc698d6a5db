"""What a step costs eagerly and replayed, and a whole map of it: 784-256-10 on MNIST, batches of 32, lr 0.1.

Run with ``python -m tests.benchmarks.speed.step mnist:FOLDER``. The ways alternate in one process on one
thread; medians of processor time, with ratios to eager. All but fused steps give the same bits, or it says so.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from storage.values.state import Update
from tasks.data.examples import Examples
from tasks.data.sources.table import find_source
from tasks.maps.local_steps import LocalSteps
from tasks.maps.stepping import backprop
from tasks.networks.objective import ModelSpec, Objective
from tasks.numerics import pinned

EXAMPLES, REPEATS, NEVER = 6000, 15, 10**9
MODELS = {"mlp": "{}", "logistic": "{}"}
WAYS = {
    "plain SGD": LocalSteps(epochs=1, lr=0.1),
    "plain SGD, 10 steps": LocalSteps(steps=10, lr=0.1),
    "fused": LocalSteps(epochs=1, lr=0.1, step="fused"),
    "clipped": LocalSteps(epochs=1, lr=0.1, clip_norm=1.0),
    "AdamW": LocalSteps(epochs=1, lr=0.001, optimizer="AdamW"),
}


def eagerly(*kind: Any) -> backprop.Known:
    return backprop.Known(reason="the benchmark wants eager steps")


REPLAYS = {False: eagerly, True: backprop.known_of}


def timed(work: Callable[[], Update], replays: bool) -> tuple[float, Update]:
    with mock.patch.object(backprop, "known_of", REPLAYS[replays]):
        began = time.process_time()
        update = work()
        return time.process_time() - began, update


def compare(objective: Objective, examples: Examples, local: LocalSteps) -> str:
    """Median milliseconds of a map, eager and replayed, and their ratio."""
    rules = {False: replace(local, step="exact"), True: local}
    times: dict[bool, list[float]] = {False: [], True: []}
    state, same = objective.initial(), True
    with pinned(0, threads=1):
        steps = local.count(len(examples))
        for _ in range(2 + 2 * backprop.EAGER // steps):
            local(objective, state, examples, {}, 0)
        for seed in range(REPEATS):
            updates = {}
            for replays, found in times.items():
                seconds, updates[replays] = timed(
                    lambda rule=rules[replays], seed=seed: rule(objective, state, examples, {}, seed), replays
                )
                found.append(seconds)
            same &= torch.equal(updates[False].direction["float32"], updates[True].direction["float32"])
    eager, replayed = (statistics.median(found) for found in times.values())
    each = f"{eager / steps * 1e6:6.0f} -> {replayed / steps * 1e6:6.0f} us a step"
    bits = "same bits" if same else "other bits"
    return f"{eager * 1e3:7.2f} -> {replayed * 1e3:7.2f} ms a map, {each}, ratio {replayed / eager:.2f}, {bits}"


def first(objective: Objective, examples: Examples) -> str:
    """What recording and checking costs, beside as many eager steps: milliseconds."""
    costs = []
    with pinned(0, threads=1):
        for begin in (0, NEVER):
            backprop.known_of.cache_clear()
            with mock.patch.object(backprop, "EAGER", begin):
                local = LocalSteps(steps=1 + backprop.CHECKED, lr=0.1)
                costs.append(
                    timed(lambda local=local: local(objective, objective.initial(), examples, {}, 0), True)[0]
                )
    return f"recorded and checked {costs[0] * 1e3:.1f} ms, the same steps eager {costs[1] * 1e3:.1f} ms"


def main() -> None:
    data = find_source(sys.argv[1] if len(sys.argv) > 1 else "digits").load().train
    examples = Examples(data.inputs[:EXAMPLES].float() / data.inputs.max(), data.targets[:EXAMPLES])
    for model, options in MODELS.items():
        spec = ModelSpec(model, tuple(examples.inputs.shape[1:]), 10, "float32", 0, options)
        objective = Objective(spec, "cross_entropy")
        print(f"{model} {options}: {first(objective, examples)}")
        for name, local in WAYS.items():
            print(f"  {name:22s} {compare(objective, examples, local)}")


if __name__ == "__main__":
    main()
