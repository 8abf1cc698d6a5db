"""Tables of a run's rounds: their numbers, and measures of how much their tensors differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from roundweave.storage.errors import RoundMissing, UsageError, nearest
from roundweave.storage.rounds.columns import ColumnsRecord, drifted
from roundweave.storage.rounds.commits import COLUMNS, Commit, ranking
from roundweave.storage.rounds.numbers import Numbers
from roundweave.storage.runs.facts import RunFacts
from roundweave.storage.runs.round import StoredRound

if TYPE_CHECKING:
    import pandas as pd


def history_table(numbers: Numbers) -> pd.DataFrame:
    """The table of `Run.history`, with a row for each committed round."""
    import pandas as pd

    columns = {name: numbers.column(f"scores/{name}") for name in ("loss", *numbers.names("scores"))}
    columns["seconds"] = numbers.column("bookkeeping/seconds")
    renamed = _columns(numbers.names("metrics"), {*columns} | COLUMNS)
    columns |= {column: numbers.column(f"metrics/{name}") for name, column in renamed.items()}
    counts = {
        name: numbers.column(f"bookkeeping/{name}") for name in ("examples", "accepted", "refused", "absent")
    }
    counts["left_out"] = numbers.column("scores/left_out")
    whole = {name: np.nan_to_num(count).astype(int) for name, count in counts.items()}
    return pd.DataFrame({**columns, **whole}, pd.Index(numbers.rounds, name="round"))


def columns_table(run: RunFacts) -> pd.DataFrame:
    """The table of `Run.description`, which has the errors that this raises."""
    import pandas as pd

    columns = _recorded(run).columns
    table = pd.DataFrame([vars(each) for each in columns.values()], pd.Index(columns, name="column"))
    table["missing"] /= [each.values for each in columns.values()]
    table["classes"] = [str(each) if each.categories else "" for each in columns.values()]
    table.loc[table["finite"] == 0, ["mean", "deviation"]] = np.nan
    return table[["dtype", "examples", "missing", "mean", "deviation", "classes"]]


def drift_table(run: RunFacts, other: RunFacts | None) -> pd.DataFrame:
    """The table of `Run.drift`, which has the errors that this raises."""
    import pandas as pd

    after = _recorded(run)
    drift = after.drift if other is None else drifted(_recorded(other).columns, after.columns)
    if drift is None:
        raise UsageError(f"{run.name} was compared with no parent as it began; give another run")
    return pd.DataFrame([asdict(each) for each in drift]).astype({"psi": float})


def _recorded(run: RunFacts) -> ColumnsRecord:
    if record := run.columns:
        return record
    raise UsageError(f"{run.name} recorded nothing of the columns of its examples; compare later runs")


@dataclass(frozen=True)
class Totals:
    """The seconds of each round, how many updates were refused in all, and the `last` scores by name."""

    seconds: Mapping[int, float]
    refused: int
    last: Mapping[str, float]


def totals_of(numbers: Numbers) -> Totals:
    """The totals of a run; `last` has the numbers of the scores in the last round with a loss, if any."""
    scored = np.flatnonzero(~np.isnan(numbers.column("scores/loss")))[-1:]
    last = {
        name: float(numbers.column(f"scores/{name}")[place])
        for name in ("loss", *numbers.names("scores"))
        for place in scored
    }
    seconds = dict(zip(numbers.rounds, numbers.column("bookkeeping/seconds").tolist(), strict=True))
    return Totals(seconds, int(np.nansum(numbers.column("bookkeeping/refused"))), last)


BOOKKEEPING = {"seconds", "weight", "accepted", "map_seconds"}
"""The names of bookkeeping arrays. A metric with such a name is another number, so its column is renamed."""


def _columns(metrics: Sequence[str], columns: set[str]) -> dict[str, str]:
    """The column of each metric: its name, with ``map_`` before it as often as needed where the name is taken."""
    renamed = [name for name in metrics if name in columns | BOOKKEEPING]
    named = {name: name for name in metrics if name not in renamed}
    for name in renamed:
        column = f"map_{name}"
        while column in columns | set(named.values()):
            column = f"map_{column}"
        named[name] = column
    return named


def best_round(history: pd.DataFrame, score: str, scores: Sequence[str], lowest: bool | None) -> int:
    """The number of the first round with the best score; arguments and errors are as for `Run.best`."""
    score, least = ranking(score) if isinstance(score, str) else (score, True)
    if score not in scores:
        hint = nearest(score, scores, f"there are {', '.join(scores)}")
        raise UsageError(f"no score {score!r}; {hint}")
    scored = history.dropna(subset=score)
    if scored.empty:
        raise RoundMissing(f"no round has the score {score}")
    scored = scored[scored["left_out"] == scored["left_out"].min()]  # numbers of fewer examples do not compare
    numbers = scored[score]
    least = least if lowest is None else lowest
    return int(numbers.index[int(numbers.argmin() if least else numbers.argmax())])


def state_difference(first: StoredRound, second: StoredRound) -> pd.DataFrame:
    """How two states differ, with a row for each tensor by path, computed in float64; see `Run.diff`.

    Columns are ``norm`` of second minus first, that ``relative`` to the norm of first, and their ``cosine``.
    Integers and booleans count as numbers. Frozen parameters are left out. NaN where a norm of 0 divides.
    """
    import pandas as pd

    before, after = (_as_numbers(round) for round in (first, second))
    rows = {path: _compared(after[path], before[path]) for path in before}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(MEASURES)).rename_axis("tensor")


def state_changes(rounds: Sequence[StoredRound]) -> pd.DataFrame:
    """A table (round, parameter): the norm of each round's change, divided by the norm of the parameter before.

    Rounds whose predecessor is not among `rounds` have no row.
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


def update_divergence(rounds: Sequence[StoredRound], partitions: int) -> pd.DataFrame:
    """How far each accepted update lies from the weighted mean, with a row for each round; see `Run.divergence`.

    Columns are (measure, partition), where measures are ``norm`` of the difference, that ``relative`` to the norm
    of the mean, and the ``cosine`` of update and mean. They are computed in float64 from the whole directions. NaN
    where a partition took no part or was refused. Raises `UsageError` for more than `COMPARED` partitions.
    """
    import pandas as pd

    if partitions > COMPARED:
        raise UsageError(f"{partitions:,} partitions are too many for a table; compare single updates of a round")
    columns = pd.MultiIndex.from_product([MEASURES, range(partitions)], names=["measure", "partition"])
    index = pd.Index([round.number for round in rounds], name="round")
    table = pd.DataFrame(float("nan"), index, columns)
    for round in rounds:
        mean = _mean_direction(round)
        for partition, direction in _directions(round):
            table.loc[round.number, (slice(None), partition)] = _compared(direction, mean)
    return table


COMPARED = 100_000
"""The most partitions whose updates are compared with their mean in one table."""


MEASURES = ("norm", "relative", "cosine")
"""How two tensors are compared: norm of the difference, that divided by the norm of the second, and cosine."""


def _compared(tensor: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """The `MEASURES` of two float64 tensors of the same shape; NaN where a norm of 0 divides."""
    norm, size, own = (float(torch.linalg.vector_norm(each)) for each in (tensor - other, other, tensor))
    product = float((tensor * other).sum())
    return norm, _ratio(norm, size), _ratio(product, own * size)


def _ratio(number: float, by: float) -> float:
    return number / by if by else float("nan")


def _as_numbers(round: StoredRound) -> dict[str, torch.Tensor]:
    named = round.state.named(round.layout).items()
    return {path: tensor.double() for path, tensor in named if not path.startswith("frozen/")}


def _mean_direction(round: StoredRound) -> torch.Tensor:
    """The weighted mean of the accepted directions, float64 (element,); a scalar 0 where there are none."""
    total = sum(round.commit.updates[partition].weight for partition in round.commit.accepted)
    mean = torch.zeros(())
    for partition, direction in _directions(round):
        mean = mean + direction * (round.commit.updates[partition].weight / (total or 1))
    return mean


def _directions(round: StoredRound) -> Iterator[tuple[int, torch.Tensor]]:
    """Each accepted direction of a round with its partition, float64 (element,)."""
    for partition in round.commit.accepted:
        vectors = round.update(partition).direction
        yield partition, torch.cat([vectors[dtype].double() for dtype in sorted(vectors)])


ARRIVAL = ("round", "partition", "push", "version", "staleness", "accepted", "seconds", "worker")


def arrivals_table(commits: Iterable[Commit]) -> pd.DataFrame:
    """The table of `Run.arrivals`, with a row for each update that was pushed to a parameter server."""
    import pandas as pd

    rows = [
        (commit.round, p, a.push, a.version, a.staleness, record.refused is None, record.seconds, record.worker)
        for commit in commits
        for p, record in commit.updates.items()
        if (a := record.arrival) is not None
    ]
    return pd.DataFrame(rows, columns=list(ARRIVAL))


def worker_rows(arrivals: pd.DataFrame) -> list[dict[str, Any]]:
    """A summary of arrivals as JSON values, a dict for each ``worker``; none where nothing arrived.

    It has the number of ``updates``, their ``share`` of all, mean ``staleness`` and the ``largest``, how many were
    ``refused``, the median ``seconds`` of a map, and the ``partitions`` involved.
    """
    grouped = arrivals.groupby("worker")
    updates = grouped.size()
    summary = updates.to_frame("updates").assign(
        share=updates / len(arrivals),
        staleness=grouped["staleness"].mean(),
        largest=grouped["staleness"].max(),
        refused=updates - grouped["accepted"].sum(),
        seconds=grouped["seconds"].median(),
        partitions=grouped["partition"].unique().map(sorted),
    )
    rows: list[dict[str, Any]] = json.loads(summary.reset_index().to_json(orient="records"))
    return rows
