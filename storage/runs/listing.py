"""List all runs under a root as a table, and compare runs with each other."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roundweave.storage.errors import StoreError, UsageError, nearest
from roundweave.storage.hierarchy.zarr_format import read_document
from roundweave.storage.places.base import Place, Where, address_of, join_address
from roundweave.storage.places.local import LocalPlace, folder_bytes
from roundweave.storage.places.schemes import place_of
from roundweave.storage.runs.figures import draw_columns, legend_below, plot_axes
from roundweave.storage.runs.names import SUFFIX, default_root, recorded_name, stored_names
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.hashing import json_digest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

KNOWN = ("status", "done", "rounds", "algorithm", "loss")
"""The columns of a list of runs besides the configuration."""

FIRST = (*KNOWN[:-1], "data", "model", "loss")
"""The first columns of a list of runs."""


LAST = ("began", "address", "error")
"""The last columns of a list of runs."""


def list_runs(root: Where | None = None) -> pd.DataFrame:
    """Return all runs under a root as a table.

    Args:
        root: The folder or address of the runs. The default is ``$ROUNDWEAVE_ROOT``, or else ``runs``.

    Returns:
        One row for each run, by name, the oldest first. Runs that cannot be opened come last, with their
        ``error``. The columns are ``status``, ``done`` and ``rounds`` (the last committed and the planned number),
        ``algorithm``, ``data``, ``model``, the scores of the last round, the fields of the configuration, the
        options of the algorithm, ``began`` and ``address``. If the name of a score or field is taken, its column
        is ``score.<name>`` or ``config.<field>``. Columns that differ between runs come before columns that do
        not.

    Raises:
        PlaceError: The root cannot be read.

    Example:
        >>> rw.list_runs().sort_values("loss")
    """
    import pandas as pd

    runs = looked_through(root)
    rows = {name: _row(run) for name, run in runs.items()}
    names = dict.fromkeys(name for row in rows.values() for name in row)
    others = [name for name in names if name not in (*FIRST, *LAST)]
    others.sort(key=lambda name: len({str(row.get(name)) for row in rows.values()}) == 1)
    columns = [*FIRST, *others, *LAST]
    return pd.DataFrame(list(rows.values()), pd.Index(list(rows), name="run"), columns)


def looked_through(
    root: Where | None = None, pattern: str = "*", last: int | None = None, names: str = ".*"
) -> dict[str, StoredRun | StoreError]:
    """Return the runs under a root whose names match a pattern such as ``first*`` and a regular expression.

    The oldest run comes first. Runs that cannot be opened come last, each as its error. With `last`, only that
    many of the newest runs are read whole; of the others only the time of their start is read.
    """
    root = address_of(root or default_root())
    began: list[tuple[float, str, StoredRun]] = []
    damaged: dict[str, StoredRun | StoreError] = {}
    folders = fnmatch.filter(stored_names(root), f"{pattern}{SUFFIX}")
    folders = [name for name in folders if re.fullmatch(names, name.removesuffix(SUFFIX))]
    if last is not None:
        times = {name: attributes_at(join_address(root, name)).get("created") for name in folders}
        known = {name: time for name, time in times.items() if isinstance(time, int | float)}
        newest = sorted(known, key=lambda name: (known[name], name))[-last:]
        folders = [name for name in folders if name in newest or name not in known]
    for name in folders:
        try:
            run = StoredRun(join_address(root, name))
            began.append((run.created, run.name, run))
        except StoreError as error:
            damaged[name.removesuffix(SUFFIX)] = error
    return {name: run for _, name, run in sorted(began, key=lambda each: each[:2])} | damaged


def attributes_at(address: str) -> Mapping[str, Any]:
    """Return the attributes of the run at an address, unchecked; an empty dict if they cannot be read."""
    try:
        return dict(read_document(place_of(address))["attributes"])
    except (StoreError, ValueError, KeyError, TypeError):
        return {}


def stored_bytes(place: Place) -> int:
    """Return the bytes of all files of the run at a place, as they are now."""
    return folder_bytes(place.path) if isinstance(place, LocalPlace) else sum(place.sizes().values())


def _row(run: StoredRun | StoreError) -> dict[str, Any]:
    """Return the row of a run in the list. A run that cannot be opened has only its error."""
    import pandas as pd

    try:
        if isinstance(run, StoreError):
            raise run
        row = {"status": run.status, "done": run.done, "rounds": run.rounds, "algorithm": run.algorithm}
        score = run.round(-1).score
        scores = score.values if score else {}
        row |= {"loss": score.loss} if score else {}
        row |= {f"score.{k}" if k in (*FIRST, *LAST) else k: v for k, v in scores.items()}
        config = {k: v for k, v in flat_config(run.config).items() if k not in (*KNOWN, "name")}
        row |= {f"config.{k}" if k in (*row, *LAST) else k: v for k, v in config.items()}
        return row | {"began": pd.Timestamp(run.created, unit="s", tz="UTC"), "address": run.address}
    except StoreError as error:
        return {"status": error.status, "error": str(error)}


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recorded configuration and the options of its algorithm, each as a text or number.

    A field with several parts becomes several, ``<field>.<part>``. A function of the user's is shown with the
    first digits of the digest of its code.
    """
    algorithm = {**config["algorithm"]}
    fields = {**config, "algorithm": algorithm.pop("name"), **algorithm}
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and "source" not in value:
            flat |= {f"{name}.{part}": _cell(of_part) for part, of_part in value.items()}
        else:
            flat[name] = _cell(value)
    return flat


def _cell(value: Any) -> Any:
    """Return a recorded value as a cell of a table: a number or a text."""
    if isinstance(value, dict) and "source" in value:
        decides = [value.get("name"), value.get("pickled") or value.get("definitions")]
        return f"{recorded_name(value)} ({json_digest(decides)[:8]})"
    return ", ".join(map(str, map(_cell, value))) if isinstance(value, list) else value


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side: the fields of the configuration that differ, and the histories.

    `config` has a row for each field and a column for each run. `history` has a row for each round and columns
    (number, run): ``history["loss"]`` has the loss of each run.
    """

    config: pd.DataFrame
    history: pd.DataFrame

    @property
    def plot(self) -> ComparisonPlots:
        """Plots of the comparison: ``compared.plot.history("loss")``."""
        return ComparisonPlots(self)


@dataclass(frozen=True)
class ComparisonPlots:
    """The plots of a comparison."""

    comparison: Comparison

    def history(self, column: str = "loss", ax: Axes | None = None) -> Axes:
        """Draw one column of the histories over rounds, with a line for each run.

        Raises `UsageError` if no run has the column.
        """
        history = self.comparison.history
        columns = list(dict.fromkeys(history.columns.get_level_values(0)))
        if column not in columns:
            hint = nearest(column, columns, f"there are {', '.join(columns)}")
            raise UsageError(f"no run has {column!r}; {hint}")
        table, ax = history[[column]].droplevel(0, axis=1), ax or plot_axes()
        legend_below(ax, draw_columns(table, table.columns, ax))
        ax.set_title(f"{column} of {len(table.columns)} runs")
        return ax


def compare(runs: Sequence[StoredRun]) -> Comparison:
    """Compare stored runs: the differences of their configurations, and their histories side by side.

    Args:
        runs: The runs, as `open_run` gives them, with different names.

    Returns:
        The comparison, with tables `config` and `history`, and plots.

    Raises:
        UsageError: Two runs have the same name, the list is empty, or an entry is no run.

    Example:
        >>> rw.compare([rw.open_run("first"), rw.open_run("second")]).config
    """
    import pandas as pd

    for other in runs:
        if not isinstance(other, StoredRun):
            raise UsageError(f"compare takes runs, as open_run gives them, not {other!r}")
    named = {run.name: run for run in runs}
    if not runs or len(named) < len(runs):
        names = ", ".join(run.name for run in runs) or "none"
        raise UsageError(f"compare takes runs of different names, not {names}")
    fields = pd.DataFrame({name: flat_config(run.config) for name, run in named.items()})
    config = fields.drop("name", errors="ignore")
    differs = config.map(repr).nunique(axis=1) > 1
    history = pd.concat({name: run.history() for name, run in named.items()}, axis=1).swaplevel(axis=1)
    order = list(dict.fromkeys(history.columns.get_level_values(0)))
    history = history.reindex(columns=order, level=0).rename_axis(columns=["number", "run"])
    return Comparison(config[differs].rename_axis("field"), history)
