"""Tables of how rounds, updates and examples of a run differ. They are methods of `Run`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.rounds.columns import ColumnsRecord, drifted
from roundweave.storage.rounds.splits import NAMES
from roundweave.storage.runs.names import WhichRound
from roundweave.storage.runs.round import Round
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.state import Update

if TYPE_CHECKING:
    import pandas as pd


def description(run: StoredRun) -> pd.DataFrame:
    """Return the recorded description of the examples, with one row for each column.

    Columns of the table are ``dtype``, ``examples`` (the number of inspected examples), ``missing`` (the share of
    NaN), ``mean`` and ``deviation`` of the finite numbers, and ``classes`` with their shares. The targets have the
    row ``targets``. Inputs without column names have the row ``inputs``, or ``inputs 3`` and so on if they are
    flat and few. Raises `UsageError` if the run recorded no description.
    """
    import pandas as pd

    columns = _recorded(run).columns
    table = pd.DataFrame([vars(each) for each in columns.values()], pd.Index(columns, name="column"))
    table["missing"] /= [each.values for each in columns.values()]
    table["classes"] = [str(each) if each.categories else "" for each in columns.values()]
    table.loc[table["finite"] == 0, ["mean", "deviation"]] = np.nan
    return table[["dtype", "examples", "missing", "mean", "deviation", "classes"]]


def drift(run: StoredRun, other: StoredRun | None = None) -> pd.DataFrame:
    """Measure how far the examples of this run have drifted from those of another run.

    Args:
        other: The other run. The default is the parent, with which this run was compared at its start.

    Returns:
        One row for each column and for each new or gone category, the largest drift first. ``what`` is ``new``,
        ``gone``, ``moved much``, ``moved`` or ``stable``. ``psi`` is the population stability index. ``before``
        and ``after`` are the moments, or the shares of the categories.

    Raises:
        UsageError: One of the runs recorded no columns, or this run has no parent that recorded columns.

    Example:
        >>> run.drift(rw.open_run("second"))["psi"].max()
    """
    import pandas as pd

    after = _recorded(run)
    found = after.drift if other is None else drifted(_recorded(other).columns, after.columns)
    if found is None:
        raise UsageError(f"{run.name} was compared with no parent as it began; give another run")
    return pd.DataFrame([asdict(each) for each in found]).astype({"psi": float})


def _recorded(run: StoredRun) -> ColumnsRecord:
    if record := run.columns:
        return record
    raise UsageError(f"{run.name} recorded nothing of the columns of its examples; compare later runs")


def diff(run: StoredRun, first: int, second: int) -> pd.DataFrame:
    """Measure how the states after two rounds differ, tensor by tensor, in float64.

    Args:
        first: The number of the earlier round; negative numbers count from the end.
        second: The number of the later round.

    Returns:
        One row for each tensor, by its path. The columns are ``norm`` (of second minus first), ``relative`` (that
        norm divided by the norm of the first) and ``cosine`` (of the two). Frozen parameters are left out. NaN
        marks a division by a norm of 0.

    Raises:
        RoundMissing: The run has no such round.
        RoundPruned: A state was pruned or never stored.
        StoreDamaged: Stored bits differ from the committed bits.

    Example:
        >>> run.diff(1, -1).sort_values("relative")
    """
    import pandas as pd

    before, after = (_as_numbers(run.round(round)) for round in (first, second))
    rows = {path: _compared(after[path], before[path]) for path in before}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(MEASURES)).rename_axis("tensor")


def changes(run: StoredRun, rounds: Iterable[int] | None = None) -> pd.DataFrame:
    """Measure how much each round changed each parameter.

    Args:
        rounds: The rounds to compare, ascending. The default are those of `kept`.

    Returns:
        One row for each round whose predecessor is among `rounds`, and one column for each parameter. A value is
        the norm of the change divided by the norm of the parameter before, computed in float64.

    Raises:
        RoundMissing: The run has no such round.
        RoundPruned: A state was pruned or never stored.
        StoreDamaged: Stored bits differ from the committed bits.

    Example:
        >>> run.changes().max()
    """
    import pandas as pd

    rows: dict[int, dict[str, float]] = {}
    before: tuple[int, Mapping[str, torch.Tensor]] = (-2, {})
    for round in _each(run, rounds, run.absent.has_state):
        params = {name: tensor.double() for name, tensor in round.params.items()}
        if before[0] == round.number - 1:
            rows[round.number] = {n: _compared(tensor, before[1][n])[1] for n, tensor in params.items()}
        before = round.number, params
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(index="round", columns="parameter")


def divergence(run: StoredRun, rounds: Iterable[int] | None = None) -> pd.DataFrame:
    """Measure how far the accepted updates of each round lie from their weighted mean.

    Args:
        rounds: The rounds to look at. The default are the rounds with stored updates.

    Returns:
        One row for each round, and columns (measure, partition), computed in float64 from whole directions. A
        partition is called by its name, else by its number. The measures are ``norm`` (of update minus mean),
        ``relative`` (that norm divided by the norm of the mean) and ``cosine`` (of update and mean). NaN marks a
        partition without an accepted update.

    Raises:
        UsageError: The run has more than 100,000 partitions.
        RoundMissing: The run has no such round.
        RoundPruned: The updates were pruned.
        StoreDamaged: Stored bits differ from the committed bits.

    Example:
        >>> run.divergence()["cosine"]
    """
    import pandas as pd

    if run.partitions > COMPARED:
        raise UsageError(
            f"{run.partitions:,} partitions are too many for a table; compare single updates of a round"
        )
    every = _each(run, rounds, run.absent.has_update)
    columns = pd.MultiIndex.from_product([MEASURES, range(run.partitions)], names=["measure", "partition"])
    table = pd.DataFrame(float("nan"), pd.Index([round.number for round in every], name="round"), columns)
    for round in every:
        mean = _mean_direction(round)
        for partition, direction in _directions(round):
            table.loc[round.number, (slice(None), partition)] = _compared(direction, mean)
    named = pd.MultiIndex.from_product([MEASURES, run.partition_names], names=columns.names)
    return table.set_axis(named, axis=1)


def _each(run: StoredRun, rounds: Iterable[int] | None, kept: Callable[[int], bool]) -> list[Round]:
    return [run.round(round) for round in (filter(kept, run.committed) if rounds is None else rounds)]


COMPARED = 100_000
"""The most partitions in one table of `divergence`."""


MEASURES = ("norm", "relative", "cosine")
"""The measures of two tensors: norm of the difference, that norm over the norm of the second, and cosine."""


def _compared(tensor: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """Return the `MEASURES` of two float64 tensors of the same shape; NaN marks a division by a norm of 0."""
    norm, size, own = (float(torch.linalg.vector_norm(each)) for each in (tensor - other, other, tensor))
    product = float((tensor * other).sum())
    return norm, _ratio(norm, size), _ratio(product, own * size)


def _ratio(number: float, by: float) -> float:
    return number / by if by else float("nan")


def _as_numbers(round: Round) -> dict[str, torch.Tensor]:
    named = round.state.named(round.layout).items()
    return {path: tensor.double() for path, tensor in named if not path.startswith("frozen/")}


def _mean_direction(round: Round) -> torch.Tensor:
    """Return the weighted mean of the accepted directions, float64 (element,); a scalar 0 if there are none."""
    total = sum(round.commit.updates[partition].weight for partition in round.commit.accepted)
    mean = torch.zeros(())
    for partition, direction in _directions(round):
        mean = mean + direction * (round.commit.updates[partition].weight / (total or 1))
    return mean


def _directions(round: Round) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each accepted direction of a round with its partition, float64 (element,)."""
    for partition in round.commit.accepted:
        vectors = round.update(partition).direction
        yield partition, torch.cat([vectors[dtype].double() for dtype in sorted(vectors)])


ARRIVAL = ("round", "partition", "push", "version", "staleness", "accepted", "seconds", "worker")


def arrivals(run: StoredRun) -> pd.DataFrame:
    """Return the updates that were pushed to a parameter server.

    Returns:
        One row for each update, in the order of the rounds. The table is empty if rounds waited for all
        partitions. The columns are ``round``, ``partition``, ``push`` (its number among the pushes of the
        partition, or of all, from 1), ``version`` (the round whose state the map began from), ``staleness`` (the
        number of later rounds that accepted an update before this one), ``accepted``, ``seconds`` of the map, and
        ``worker``. Named partitions add ``partition_name``.

    Example:
        >>> run.arrivals().groupby("partition")["staleness"].mean()
    """
    import pandas as pd

    rows = [
        (commit.round, p, a.push, a.version, a.staleness, record.refused is None, record.seconds, record.worker)
        for commit in (run.round(round).commit for round in run.committed)
        for p, record in commit.updates.items()
        if (a := record.arrival) is not None
    ]
    table, names = pd.DataFrame(rows, columns=list(ARRIVAL)), run.partition_names
    named = {} if isinstance(names, range) else {NAMES: [names[p] for p in table["partition"]]}
    return table.assign(**named)


def by_worker(run: StoredRun) -> list[dict[str, Any]]:
    """Summarise arrivals as JSON values, one dict for each ``worker``; no dict if nothing arrived.

    A dict has the number of ``updates``, their ``share`` of all, the mean ``staleness`` and the ``largest``, the
    number of ``refused`` updates, the median ``seconds`` of a map, and the ``partitions`` involved.
    """
    came = arrivals(run)
    grouped = came.groupby("worker")
    updates = grouped.size()
    summary = updates.to_frame("updates").assign(
        share=updates / len(came),
        staleness=grouped["staleness"].mean(),
        largest=grouped["staleness"].max(),
        refused=updates - grouped["accepted"].sum(),
        seconds=grouped["seconds"].median(),
        partitions=grouped["partition"].unique().map(sorted),
    )
    rows: list[dict[str, Any]] = json.loads(summary.reset_index().to_json(orient="records"))
    return rows


def carried(run: StoredRun, round: WhichRound) -> dict[int, Update]:
    """Return what each partition carries into the round after a given one.

    Args:
        round: The round, as for `Run.round`.

    Returns:
        By partition, the last accepted update that set the carry. Its `carry` has vectors (element,) by slot and
        dtype. The dict is empty for algorithms without a carry.

    Raises:
        RoundMissing: The run has no such round.
        StoreDamaged: Stored bits differ from the committed bits.

    Example:
        >>> run.carried("last")[0].carry
    """
    sources = run.round(round).commit.carry_from.items()
    return {partition: run.round(source).update(partition) for partition, source in sources}
