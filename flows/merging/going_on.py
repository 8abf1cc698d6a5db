"""What a merge starts, finished: the merged network goes on in rounds over what its parents were trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flows.config.merge import MergeConfig
from flows.config.train import TrainConfig
from flows.merging.choosing import Scorer, scored
from flows.merging.preparing import MergePlan
from flows.merging.result import MergeResult
from flows.merging.subject import parents, training
from flows.stored import Run
from storage.checkpoints.writing import write_checkpoint
from tasks.merging.blends import Blend

LOCAL = ("lr", "batch_size", "momentum", "nesterov", "optimizer", "optimizer_options", "clip_norm")
"""Of the training of a parent, what the rounds train by, too."""


def rounds_after(plan: MergePlan, result: MergeResult) -> TrainConfig:
    """The rounds of a merged network: a partition for each parent, a local epoch a round, then the mean."""
    config, run = plan.config, result.run
    assert run is not None
    places = {name: getattr(config, name) for name in ("root", "workers", "scheduler", "executor")}
    return training(
        config.model_copy(update={"data": plan.parents_data}),
        len(config.networks),
        algorithm={"name": "fed_avg", "local_epochs": 1, **_local(config)},
        rounds=config.rounds,
        start_from=f"{run.path.resolve()}@1",
        name=f"{run.name}-rounds",
        **places,
    )


def with_rounds(plan: MergePlan, result: MergeResult, run: Run, scorer: Scorer) -> MergeResult:
    """The result with a score for each round, on the same examples as the others; the file is of the last one."""
    numbers = range(1, run.done + 1)
    blends = {_after(n): [Blend((f"{run.path.resolve()}@{n}",), (1.0,))] for n in numbers}
    scores = {name: each for name, (each,) in scored(blends, scorer).items()}
    if result.out:
        write_checkpoint(result.out, run.round(-1).tensors)
    return replace(result, rounds=run, scores={**result.scores, **scores})


def _after(rounds: int) -> str:
    return f"after {rounds} round{'s' * (rounds > 1)}"


def _local(config: MergeConfig) -> dict[str, Any]:
    runs = parents(config)
    recorded = runs[0].config["algorithm"] if runs else {}
    options = {name: recorded[name] for name in LOCAL if recorded.get(name) is not None}
    return options | ({"lr": config.lr} if config.lr is not None else {})
