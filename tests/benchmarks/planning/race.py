"""What `auto` takes beside all strategies, each trained to 97 % of the final accuracy by a stopwatch.

    python -m tests.benchmarks.planning.race DATA RESULTS [--only mnist-wide] [--turns 3] [--workers 2]

Not a test: it asserts nothing. DATA has the folders `mnist` and `fashion`. What is known of a cell is kept in a
file of the folder RESULTS, so that it goes on where it was; without --only all cells are done.

The final accuracy is the best that one plain process reaches in the run's epochs. How many rounds a strategy needs
to 97 % of it follows from the seed, as the final accuracy does, and is the median of three, with 20 scores an
epoch; what they take, without scores, is measured in turns, in each of which there is a plan, too. Who would take
twice as long as the best so far is given up.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import typer

import roundweave as rw
from roundweave.flows.planning.plan import plan
from roundweave.flows.plugins.race.choosing import bench_for
from roundweave.flows.plugins.race.strategies import Strategy, Workload, strategies, workload
from roundweave.flows.plugins.race.trying import Bench
from roundweave.flows.training.job import prepare
from tests.benchmarks.rounds import show

SHARE, SCORES, FAR, SEEDS = 0.97, 20, 2.0, 3

LONG = 0.1
"""Rounds of a twentieth of an epoch that take so many seconds tell what an epoch takes; shorter ones do not."""

CELLS: dict[str, dict[str, Any]] = {
    "digits-narrow": {"data": "digits", "model": "mlp", "model_options": {"hidden": 32}, "rounds": 60},
    "mnist-narrow": {"data": "mnist", "model": "mlp", "model_options": {"hidden": 32}, "rounds": 20},
    "mnist-wide": {"data": "mnist", "model": "mlp", "model_options": {"hidden": 256}, "rounds": 20},
    "fashion-wide": {"data": "fashion", "model": "mlp", "model_options": {"hidden": 256}, "rounds": 20},
    "mnist-cnn": {"data": "mnist", "model": "cnn", "rounds": 10},
    "fashion-cnn": {"data": "fashion", "model": "cnn", "rounds": 10},
}


def main(data: Path, folder: Path, only: str = "", turns: int = 3, workers: int = 2) -> None:
    """Do what is missing of the cells, and print all that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in only.split(",") if only else CELLS:
        with tempfile.TemporaryDirectory() as root:
            cell, found = CELLS[name], CELLS[name]["data"]
            source = found if found == "digits" else f"mnist:{data / found}"
            given = {**cell, "data": source, "algorithm": "auto", "workers": workers, "root": root}
            config = rw.TrainConfig(**given)
            work, plain = workload(config)
            with bench_for(config, work, plain) as bench:
                Cell(config, work, bench, folder / f"{name}.json").do(turns)
    files = (folder / f"{name}.json" for name in CELLS)
    found = {file.stem: json.loads(file.read_text()) for file in files if file.exists()}
    show(HEADS, [row(name, known) for name, known in found.items() if known.get("plans") and known.get("seconds")])


@dataclass
class Cell:
    """A work, and the file of what is known of it."""

    config: rw.TrainConfig
    work: Workload
    bench: Bench
    file: Path

    def do(self, turns: int) -> None:
        """Do what is missing."""
        known = json.loads(self.file.read_text()) if self.file.exists() else {}
        candidates = list(strategies(self.work, self.config.workers, os.cpu_count() or 1))
        if "final" not in known:
            runs = (self.trained(candidates[0], keep="last:1", seed=seed) for seed in range(SEEDS))
            known["final"] = [float(run["accuracy"].max()) for run in runs]
            self.keep(known)
        rounds = known.setdefault("rounds", {})
        for each in candidates:
            if each.name not in rounds:
                rounds[each.name] = self.needed(each, known)
                self.keep(known)
        for turn in range(turns):
            if len(known.setdefault("plans", [])) == turn:
                known["plans"].append(self.planned(turn))
                self.keep(known)
            for each in candidates:
                taken = known.setdefault("seconds", {}).setdefault(each.name, [])
                if rounds[each.name] is not None and len(taken) == turn:
                    taken.append(rounds[each.name] * self.round_seconds(each))
                    self.keep(known)

    def keep(self, known: dict[str, Any]) -> None:
        """Write what is known by now."""
        self.file.write_text(json.dumps(known, indent=1))

    def planned(self, seed: int) -> dict[str, Any]:
        """What a plan takes, in both senses."""
        began = time.perf_counter()
        plan = rw.plan(self.config.model_copy(update={"seed": seed}))
        raced = {name: row.model_dump() for name, row in plan.raced.items()}
        return {"chosen": plan.chosen.name, "took": time.perf_counter() - began, "raced": raced}

    def needed(self, strategy: Strategy, known: dict[str, Any]) -> float | None:
        """Rounds of a strategy to most of the final accuracy, parts of them where they are epochs.

        The median over seeds; None where it is too slow.
        """
        fine = self.fine(strategy)
        share = fine.steps / strategy.steps
        seconds = self.round_seconds(strategy)
        best = known.setdefault("fastest", 1e9)
        most = min(ceil(fine.rounds(self.work) * self.work.epochs), ceil(FAR * best / seconds / share))
        every = max(1, round(fine.rounds(self.work) / SCORES))
        needed = []
        for seed, final in enumerate(known["final"]):
            how = {"evaluate_every": every, "target_accuracy": SHARE * final, "keep": "last:1", "seed": seed}
            scored = self.trained(fine, rounds=max(every, most), **how)["accuracy"].dropna()
            there = scored[(scored >= SHARE * final) & (scored.index > 0)]
            needed.append(inf if there.empty else float(there.index[0]) * share)
        rounds = median(needed)
        known["fastest"] = min(best, rounds * seconds)
        return rounds if rounds < inf else None

    def fine(self, strategy: Strategy) -> Strategy:
        """The same training in rounds of a twentieth of an epoch, where that can be told apart."""
        return strategy.shortened(ceil(strategy.steps / SCORES)) if strategy.executor == "inline" else strategy

    def round_seconds(self, strategy: Strategy) -> float:
        """Seconds of a round of a strategy, without scores and the first ones."""
        fine = self.fine(strategy)
        seconds = self.mean_seconds(fine)
        if fine is strategy or seconds > LONG:
            return seconds * strategy.steps / fine.steps
        return self.mean_seconds(strategy)

    def mean_seconds(self, strategy: Strategy) -> float:
        """The mean of rounds that take a second, but for the first two, of which there is one at least."""
        seconds, rounds = 0.0, 4
        while True:
            taken = self.trained(strategy, rounds=rounds + 1, evaluate_every=10**6)["seconds"].iloc[3:-1]
            seconds = float(taken.mean())
            if taken.sum() >= 1 or rounds > 1000:
                return seconds
            rounds = 3 + ceil(1.2 / max(seconds, 1e-3))

    def trained(self, strategy: Strategy, **more: Any) -> pd.DataFrame:
        """The history of a run of a strategy, in its own way or with other fields; the run is deleted."""
        executor = self.bench.executors[strategy.executor]
        with prepare(plan(strategy.configured(self.config, self.work, **more)), executor) as ready:
            commit, seconds = ready.store.log.read(0), None
            while commit.round < ready.job.attempt.rounds and not ready.job.attempt.stop_reason(commit):
                last = min(commit.round + ready.window(seconds), ready.job.attempt.rounds)
                *_, commit = executor.run(ready.job, commit.round + 1, last)
                seconds = commit.seconds
                ready.let_go(commit)
        history = rw.open_run(ready.store.address).history()
        shutil.rmtree(ready.store.address)
        return history


def row(name: str, known: dict[str, Any]) -> list[str]:
    """What is known of a cell: the best strategy, what `auto` took most often, and what that costs."""
    times = {each: median(taken) for each, taken in known["seconds"].items() if taken}
    best = min(times, key=times.__getitem__)
    (chosen, count), *others = Counter(plan["chosen"] for plan in known["plans"]).most_common()
    took, seconds = median(plan["took"] for plan in known["plans"]), times.get(chosen, float("nan"))
    auto = f"{chosen} ({count})" + "".join(f", {other} ({times})" for other, times in others)
    ratios = f"{seconds / times[best]:.2f}", f"{took:.3g}", f"{(seconds + took) / times[best]:.2f}"
    told = sorted(times.items(), key=lambda pair: pair[1])
    every = ", ".join(f"{each} {taken:.3g} ({known['rounds'][each]:.3g})" for each, taken in told)
    shown = [name, f"{median(known['final']):.2%}", best, f"{times[best]:.3g}", auto, f"{seconds:.3g}"]
    return [*shown, *ratios, every]


HEADS = ("cell", "97 % of", "best", "s", "auto took", "s", "ratio", "its plans, s", "with them", "s (rounds)")


if __name__ == "__main__":
    typer.run(main)
