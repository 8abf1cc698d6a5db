"""What the command prints of runs for machines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flows.config.train import Planned
from storage.errors import StoreError
from storage.places.addresses import full_address
from storage.runs.run import Run
from storage.runs.tables import worker_rows

if TYPE_CHECKING:
    import pandas as pd


def run_summary(run: Run) -> dict[str, Any]:
    """What machines want to know of a run; loss and scores are the last ones there are, or None."""
    history = run.history()
    scored = history.dropna(subset=["loss"])
    scores = {name: _last(scored[name]) for name in run.scores}
    return {
        "run": run.name,
        "path": full_address(run.address),
        "status": run.status,
        "rounds": run.done,
        "of_rounds": run.rounds,
        "digest": run.digest,
        "loss": _last(scored["loss"]),
        "accuracy": scores.get("accuracy"),
        "scores": scores,
        "seconds_per_round": seconds_per_round(history),
        "refused": int(history["refused"].sum()),
        "stop": run.stop,
        "failure": run.failure,
    }


def seconds_per_round(history: pd.DataFrame) -> float | None:
    """The mean over all rounds but the first, before which much is made ready; None where there is no other."""
    seconds = history["seconds"]
    later = seconds[seconds.index > 1]
    return float(later.mean()) if len(later) else None


def detailed_summary(run: Run) -> dict[str, Any]:
    """The same, with how a strategy was chosen, and what came to a parameter server from each worker."""
    summary = run_summary(run)
    if planned := run.config.get("planned"):
        summary["planned"] = Planned(**planned).model_dump() | {"taken": summary["seconds_per_round"]}
    if arrivals := worker_rows(run.arrivals()):
        summary["arrivals"] = arrivals
    return summary


def summary_or_damage(name: str, run: Run | StoreError) -> dict[str, Any]:
    """The summary of a run, or of one that is damaged why."""
    try:
        if isinstance(run, Run):
            return run_summary(run)
        raise run
    except StoreError as error:
        return {"run": name, "status": "damaged", "failure": str(error)}


def _last(column: Any) -> float | None:
    return None if not len(column) or math.isnan(column.iloc[-1]) else float(column.iloc[-1])
