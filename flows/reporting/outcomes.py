"""How a run ended, as events of Prefect: automations of the user's wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prefect.context import FlowRunContext
from prefect.events import emit_event

from roundweave.flows.reporting.listening import Listener, finite
from roundweave.storage.errors import StoreError, one_line
from roundweave.storage.places.base import full_address
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.run import StoredRun

EVENTS: Mapping[str, str] = {
    "roundweave.round.committed": "rounds were committed; at most one event a second, with all since the last",
    "roundweave.run.completed": "the run has all its rounds, or stopped early as its options say",
    "roundweave.run.rejected": "the gate rejected the run, or its data had drifted",
    "roundweave.run.failed": "the run ended with an error, also before its first round",
    "roundweave.run.degraded": "the complete run has a larger loss than the round or checkpoint it began with",
}
"""The events and when Prefect gets them."""


class RunEnd(Listener):
    """Tells Prefect how a training ended: of the run that began, or else of what was to have this name."""

    def __init__(self, name: str, root: str) -> None:
        self.name = name
        self.root = root
        self.address: str | None = None

    def began(self, address: str) -> None:
        """Remember the run."""
        self.address = address

    def tell(self, error: Exception | None = None) -> None:
        """Send the events of a training that has ended; does nothing outside of a flow run."""
        if FlowRunContext.get() is None:
            return
        failure = error and one_line(error)
        facts: dict[str, Any] = {"run": self.name, "root": full_address(self.root), "failure": failure}
        run = None
        try:
            if self.address:
                run = StoredRun(self.address)
                facts |= _facts(run)
        except StoreError as unread:
            facts["failure"] = failure or one_line(unread)
        name = facts["run"]
        resource = {"prefect.resource.id": f"roundweave.run.{name}", "prefect.resource.name": name}
        for outcome in _outcomes(run, error):
            emit_event(event=f"roundweave.run.{outcome}", resource=resource, payload=finite(facts))


def _outcomes(run: StoredRun | None, error: Exception | None) -> Iterator[str]:
    """Of which events a training tells that ended with an error or not; its run is None if none had begun.

    An event is called ``roundweave.run.<name>``.
    """
    if error is not None:
        yield "failed"
        return
    yield "rejected" if run is not None and run.status == "rejected" else "completed"
    if run is not None and _is_worse(run):
        yield "degraded"


def _facts(run: StoredRun) -> dict[str, Any]:
    """Return a run in an event; the loss and the scores are those of the last round that was scored."""
    score = last_score(run)
    return {
        "run": run.name,
        "address": full_address(run.address),
        "rounds": run.done,
        "of_rounds": run.rounds,
        "loss": score and score.loss,
        "scores": dict(score.values) if score else {},
        "digest": run.digest,
        "parent": run.parent,
        "reasons": run.judgement.reasons if run.judgement else [],
    }


def last_score(run: StoredRun) -> Score | None:
    """Return the score of the last round that was scored; None if none was."""
    return next(filter(None, (run.round(number).score for number in range(run.done, -1, -1))), None)


def _is_worse(run: StoredRun) -> bool:
    """Tell whether a run that began with a network of another has a larger loss than that had, or none."""
    first, last = run.round(0).score, last_score(run)
    if run.parent is None or first is None or last is None:
        return False
    return not last.loss <= first.loss
