"""What each way to merge takes: the table of costs in docs/merging.md.

    python tests/benchmarks/speed/merging.py first@-1 second@-1 [--root runs] [--times 3]

Processor seconds in this process, medians: of matching, with observing the networks where a way is the first to
need it, and of scoring. What one way has done the next ones use again, as `roundweave merge --match auto` does.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from flows.config.merge import MergeConfig
from flows.merging.choosing import choose, remembered
from flows.merging.flow import matching, score_networks
from flows.merging.ladder import Rung, ways
from flows.merging.preparing import MergePlan, plan_merge
from tasks.executors.inline import InlineExecutor


def costs(plan: MergePlan) -> Iterator[tuple[str, float, float]]:
    """Each way, what matching and what scoring takes in it."""
    executor = InlineExecutor()
    scorer = remembered(partial(score_networks, executor, plan))
    rungs: list[Rung] = []
    with matching(executor, plan) as matcher:
        for way in ways(plan, rungs):
            here = replace(plan, config=way.chosen(plan.config))
            began = time.process_time()
            networks = matcher(here)
            matched = time.process_time()
            choice = choose(here, networks.places, scorer)
            done = time.process_time()
            score = list(choice.scores.values())[-1]
            rungs.append(Rung(way, score, score.loss, done - began))
            yield way.options, matched - began, done - matched


def main(
    networks: Annotated[list[str], typer.Argument()],
    root: str = "runs",
    times: int = 3,
) -> None:
    """Print the table."""
    plan = plan_merge(MergeConfig(networks=tuple(networks), root=root, match="auto", executor="inline"))
    found = defaultdict(list)
    for _ in range(times):
        for options, matched, scored in costs(plan):
            found[options].append((matched, scored))
    print("| way | matching | scoring |\n| --- | --- | --- |")
    for options, taken in found.items():
        columns = (f"{statistics.median(each):.2f}" for each in zip(*taken, strict=True))
        print(f"| `{options}` | {' | '.join(columns)} |")


if __name__ == "__main__":
    typer.run(main)
