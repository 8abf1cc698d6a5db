"""What a merge starts, finished: the merged network goes on in rounds over what its parents were trained on."""

from __future__ import annotations

from collections.abc import Mapping
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
from storage.places.addresses import full_address
from tasks.merging.blends import Blend

JOINT = "one, on all data"
"""The row of joint training."""

LOCAL = ("lr", "batch_size", "momentum", "nesterov", "optimizer", "optimizer_options", "clip_norm")
"""Of the training of a parent, what the rounds train by, too."""


def rounds_after(plan: MergePlan, result: MergeResult) -> TrainConfig:
    """The rounds of a merged network: a partition for each parent, a local epoch a round, then the mean."""
    run = _kept(result)
    start = {"start_from": f"{full_address(run.address)}@1", "name": f"{run.name}-rounds"}
    return _epochs(plan, len(plan.config.networks), plan.config.rounds, **start)


def joint_training(plan: MergePlan, result: MergeResult) -> TrainConfig:
    """What the parents would have been together: one network from the seed on, over all that they saw."""
    return _epochs(plan, 1, plan.config.joint, name=f"{_kept(result).name}-joint")


def _epochs(plan: MergePlan, partitions: int, rounds: int, **more: Any) -> TrainConfig:
    config = plan.config
    places = {name: getattr(config, name) for name in ("root", "workers", "scheduler", "executor")}
    return training(
        config.model_copy(update={"data": plan.parents_data}),
        partitions,
        algorithm={"name": "fed_avg", "local_epochs": 1, **_local(config)},
        rounds=rounds,
        **places,
        **more,
    )


def with_rounds(result: MergeResult, run: Run, scorer: Scorer) -> MergeResult:
    """The result with a score for each round, on the same examples as the others; the file is of the last one."""
    if result.out:
        write_checkpoint(result.out, run.round(-1).tensors, result.metadata | {"rounds": str(run.done)})
    return replace(_with_scores(result, run, {_after(n): n for n in range(1, run.done + 1)}, scorer), rounds=run)


def with_joint(result: MergeResult, run: Run, scorer: Scorer) -> MergeResult:
    """The result with the score of the network that was trained on all of the data."""
    return _with_scores(result, run, {JOINT: run.done}, scorer)


def _with_scores(result: MergeResult, run: Run, rounds: Mapping[str, int], scorer: Scorer) -> MergeResult:
    blends = {row: [Blend((f"{full_address(run.address)}@{n}",), (1.0,))] for row, n in rounds.items()}
    scores = {row: each for row, (each,) in scored(blends, scorer).items()}
    return replace(result, scores={**result.scores, **scores})


def _kept(result: MergeResult) -> Run:
    assert result.run is not None
    return result.run


def _after(rounds: int) -> str:
    return f"after {rounds} round{'s' * (rounds > 1)}"


def _local(config: MergeConfig) -> dict[str, Any]:
    runs = parents(config)
    recorded = runs[0].config["algorithm"] if runs else {}
    options = {name: recorded[name] for name in LOCAL if recorded.get(name) is not None}
    return options | ({"lr": config.lr} if config.lr is not None else {})
