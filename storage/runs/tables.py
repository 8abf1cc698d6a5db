"""What is told of a run's rounds as tables: their numbers, and how far their tensors lie from one another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from storage.errors import RoundMissing, UsageError, nearest
from storage.hierarchy.schema import REPORTED
from storage.rounds.commits import Commit
from storage.rounds.numbers import History
from storage.runs.round import Round
from storage.values.tensors import Vectors

if TYPE_CHECKING:
    import pandas as pd

LOWEST = ("loss", "mae")
"""The scores of which the lowest is the best."""


def history_table(history: History) -> pd.DataFrame:
    """A row for each of the rounds: see `Run.history`."""
    import pandas as pd

    names: dict[str, list[str]] = {group: [] for group in REPORTED}
    for path in history.paths():
        group, _, name = path.partition("/")
        names[group].append(name)
    scores = ["loss", *(name for name in names["scores"] if name != "loss")]
    metrics = _columns(names["metrics"], {*scores, "seconds"} | COUNTS)
    return pd.concat([_block_table(rounds, told, scores, metrics) for rounds, told in history.blocks()])


def _block_table(
    rounds: list[int], told: Mapping[str, np.ndarray], scores: Sequence[str], metrics: Mapping[str, str]
) -> pd.DataFrame:
    """The rows of a block of rounds, of which numbers are told by path, (round,) or (round, partition)."""
    import pandas as pd

    nothing, nobody = np.full(len(rounds), np.nan), np.empty((len(rounds), 0))
    columns = {name: told.get(f"scores/{name}", nothing) for name in scores}
    columns["seconds"] = told["bookkeeping/seconds"]
    accepted = told.get("bookkeeping/accepted", nobody)
    weight = np.where(accepted == 1, told.get("bookkeeping/weight", nobody), 0.0)
    for name, column in metrics.items():
        metric = told.get(f"metrics/{name}")
        columns[column] = nothing if metric is None else _weighted_mean(metric, weight)
    counts = {"examples": weight.sum(axis=1), "accepted": (accepted == 1).sum(axis=1)}
    counts["refused"] = (accepted == 0).sum(axis=1)
    whole = {name: count.astype(int) for name, count in counts.items()}
    return pd.DataFrame({**columns, **whole}, pd.Index(rounds, name="round"))


COUNTS = {"examples", "accepted", "refused"}
"""Further columns of a history."""


BOOKKEEPING = {"seconds", "weight", "accepted", "map_seconds"}
"""Arrays of the bookkeeping; a metric of such a name is another number."""


def _columns(metrics: Sequence[str], columns: set[str]) -> dict[str, str]:
    """The column of each metric: its name, else that with ``map_`` before it as often as it takes."""
    renamed = [name for name in metrics if name in columns | BOOKKEEPING]
    named = {name: name for name in metrics if name not in renamed}
    for name in renamed:
        column = f"map_{name}"
        while column in columns | set(named.values()):
            column = f"map_{column}"
        named[name] = column
    return named


def _weighted_mean(metric: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The mean over partitions, (round, partition) -> (round,); NaN where no accepted update tells of it."""
    told = np.where(np.isfinite(metric), weight, 0.0)
    total = told.sum(axis=1)
    mean: np.ndarray = np.nansum(metric * told, axis=1) / np.where(total > 0, total, np.nan)
    return mean


def best_round(history: pd.DataFrame, score: str, scores: Sequence[str], lowest: bool | None) -> int:
    """The first round with the best number of a score: see `Run.best`."""
    if score not in scores:
        hint = nearest(score, scores, f"there are {', '.join(scores)}")
        raise UsageError(f"no score {score!r}; {hint}")
    told = history[score].dropna()
    if told.empty:
        raise RoundMissing(f"no round has the score {score}")
    least = score in LOWEST if lowest is None else lowest
    return int(told.index[int(told.argmin() if least else told.argmax())])


def state_difference(first: Round, second: Round) -> pd.DataFrame:
    """How two states differ, a row a tensor: `norm` of second - first, `relative` to first, their `cosine`.

    Tensors are called by their paths; integers and truths count as numbers, frozen ones are left out. Computed in
    float64; NaN where something is divided by 0.
    """
    import pandas as pd

    before, after = (_as_numbers(round) for round in (first, second))
    rows = {path: _compared(after[path], before[path]) for path in before}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(MEASURES)).rename_axis("tensor")


def state_changes(rounds: Sequence[Round]) -> pd.DataFrame:
    """The norm of what each round changed of each parameter, relative to the parameter before: (round, parameter).

    Of rounds whose predecessor is not among them nothing is told.
    """
    import pandas as pd

    rows: dict[int, dict[str, float]] = {}
    before: tuple[int, Mapping[str, torch.Tensor]] = (-2, {})
    for round in rounds:
        params = {name: tensor.double() for name, tensor in round.params.items()}
        if before[0] == round.number - 1:
            rows[round.number] = {n: _compared(tensor, before[1][n])[1] for n, tensor in params.items()}
        before = round.number, params
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(index="round", columns="parameter")


def update_divergence(rounds: Sequence[Round], partitions: int) -> pd.DataFrame:
    """How far each accepted update lies from their weighted mean: columns (measure, partition), a row a round.

    The `norm` of the difference, the same `relative` to the mean, and the `cosine` of the update and the mean, of
    the directions as a whole; NaN where a partition took no part or was refused; computed in float64.
    """
    import pandas as pd

    if partitions > COMPARED:
        raise UsageError(f"of {partitions:,} partitions no table is made; compare single updates of a round")
    columns = pd.MultiIndex.from_product([MEASURES, range(partitions)], names=["measure", "partition"])
    index = pd.Index([round.number for round in rounds], name="round")
    table = pd.DataFrame(float("nan"), index, columns)
    for round in rounds:
        mean = _mean_direction(round)
        for partition, direction in _directions(round):
            table.loc[round.number, (slice(None), partition)] = _compared(direction, mean)
    return table


COMPARED = 100_000
"""Partitions whose updates are compared with their mean in one table."""


MEASURES = ("norm", "relative", "cosine")
"""How two tensors are compared: the norm of their difference, the same relative to the second, their cosine."""


def _compared(tensor: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """The measures of two tensors of one shape, (*shape) in float64; NaN where something is divided by 0."""
    norm, size, own = (float(torch.linalg.vector_norm(each)) for each in (tensor - other, other, tensor))
    product = float((tensor * other).sum())
    return norm, _ratio(norm, size), _ratio(product, own * size)


def _ratio(number: float, by: float) -> float:
    return number / by if by else float("nan")


def _as_numbers(round: Round) -> dict[str, torch.Tensor]:
    named = round.state.named(round.layout).items()
    return {path: tensor.double() for path, tensor in named if not path.startswith("frozen/")}


def _mean_direction(round: Round) -> torch.Tensor:
    """The mean of the accepted directions by their weights, float64 (element,); 0 where there are none."""
    total = sum(round.commit.updates[partition].weight for partition in round.commit.accepted)
    mean = torch.zeros(())
    for partition, direction in _directions(round):
        mean = mean + direction * (round.commit.updates[partition].weight / (total or 1))
    return mean


def _directions(round: Round) -> Iterator[tuple[int, torch.Tensor]]:
    """The accepted directions one by one, float64 (element,)."""
    for partition in round.commit.accepted:
        yield partition, _whole(round.update(partition).direction)


def _whole(vectors: Vectors) -> torch.Tensor:
    """The vectors of all types as one, float64 (element,)."""
    return torch.cat([vectors[dtype].double() for dtype in sorted(vectors)])


ARRIVAL = ("round", "partition", "push", "version", "staleness", "accepted", "seconds", "worker")


def arrivals_table(commits: Iterable[Commit]) -> pd.DataFrame:
    """A row for each update of asynchronous rounds: see `Run.arrivals`."""
    import pandas as pd

    rows = [
        (commit.round, p, a.push, a.version, a.staleness, record.refused is None, record.seconds, record.worker)
        for commit in commits
        for p, record in commit.updates.items()
        if (a := record.arrival) is not None
    ]
    return pd.DataFrame(rows, columns=list(ARRIVAL))


def arrivals_by(arrivals: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sums by ``worker`` or ``partition``: updates, their share, mean and largest staleness, refused, seconds."""
    grouped = arrivals.groupby(column)
    updates = grouped.size()
    return updates.to_frame("updates").assign(
        share=updates / len(arrivals),
        staleness=grouped["staleness"].mean(),
        largest=grouped["staleness"].max(),
        refused=updates - grouped["accepted"].sum(),
        seconds=grouped["seconds"].median(),
        partitions=grouped["partition"].unique().map(sorted),
    )


def worker_rows(arrivals: pd.DataFrame) -> list[dict[str, Any]]:
    """The sums by worker for machines, none where nothing arrived."""
    rows: list[dict[str, Any]] = []
    if not arrivals.empty:
        rows = json.loads(arrivals_by(arrivals, "worker").reset_index().to_json(orient="records"))
    return rows
