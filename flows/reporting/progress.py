"""What Prefect shows of a run: its name, a progress bar, rounds as events and log lines, a table and a plot."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.logging import get_run_logger

from roundweave.flows.reporting.listening import Listener, finite, listening, shown_cell, shown_commit
from roundweave.flows.reporting.reporter import Reporter, filtered, reported_step, reporting, without_dask
from roundweave.storage.errors import printable
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.runs.names import run_name
from roundweave.storage.runs.run import StoredRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SECONDS_BETWEEN_REPORTS = 1.0
"""The shortest time between two reports of progress: each takes Prefect's client and server milliseconds."""


class FlowPage:
    """A flow run's page in Prefect; the flow run is renamed to what the flow makes, such as the run's name."""

    def __init__(self, reporter: Reporter, flow_run: UUID, name: str) -> None:
        self.reporter = reporter
        self.flow_run = flow_run
        self.name = printable(name)
        # Prefect allows only these characters.
        self.key = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")
        reporter.put(lambda client, _: client.set_flow_run_name(self.flow_run, self.name))

    def leave_table(self, rows: Iterable[Mapping[Any, Any]], kind: str) -> None:
        """Add a table of rows to the page, as an artifact of this kind."""
        shown = [{str(name): shown_cell(name, value) for name, value in row.items()} for row in rows]
        self._leave("table", kind, json.dumps(shown))

    def leave_plot(self, figure: Figure, kind: str) -> None:
        """Add a figure to the page, as an artifact of this kind: Markdown that holds the picture as PNG."""
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=80)
        picture = f"![{self.name}](data:image/png;base64,{base64.b64encode(image.getvalue()).decode()})"
        self._leave("markdown", kind, picture)

    def artifact(self, type: str, kind: str, data: Any) -> ArtifactCreate:
        """Return an artifact of this flow run; its key is made of the run's name and the kind."""
        key, description = f"{self.key}-{kind}", f"{kind} of {self.name}"
        return ArtifactCreate(type=type, key=key, description=description, data=data, flow_run_id=self.flow_run)

    def _leave(self, type: str, kind: str, data: str) -> None:
        artifact = self.artifact(type, kind, data)
        self.reporter.put(lambda client, _: client.create_artifact(artifact))


@contextmanager
def flow_page(name: str) -> Iterator[FlowPage | None]:
    """Yield the page of the current Prefect flow run, or None outside of one."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield None
        return
    with reporting() as reporter:
        yield FlowPage(reporter, context.flow_run.id, name)


@contextmanager
def titled(name: str) -> Iterator[None]:
    """Name the current flow run, and write notices into its log while the context is open."""
    with flow_page(name) as page, listening(Log()) if page else nullcontext(), filtered(without_dask):
        yield


class Log(Listener):
    """A listener that writes notices into the flow run's log."""

    def notice(self, text: str) -> None:
        get_run_logger().warning(text)


@contextmanager
def rounds_reported(address: str, rounds: int, done: int) -> Iterator[None]:
    """Report a run's rounds on the flow run's page while the context is open; does nothing outside a flow run.

    `done` of the `rounds` were done before. At the end, tables and plots of all rounds are added to the page.
    """
    with flow_page(run_name(address)) as page:
        if page is None:
            yield
            return
        run = StoredRun(address)
        origin = {"begins with": run.parent or "weights of its seed", "data": run.attributes["data"]["digest"]}
        page.leave_table([origin], "origin")
        get_run_logger().info(", ".join(f"{name} {value}" for name, value in origin.items()))
        progress = Progress(page, rounds, done)
        with listening(progress):
            try:
                yield
            finally:
                progress.report()
        from roundweave.storage.runs.figures import Plots
        from roundweave.storage.runs.measures import by_worker

        run.refresh()
        page.leave_table(run.history().reset_index().to_dict("records"), "history")
        plots = Plots(run)
        page.leave_plot(_figure(plots.history, len(plots.kinds)), "plot")
        if workers := by_worker(run):
            page.leave_table(workers, "arrivals")
            page.leave_plot(_figure(plots.staleness), "staleness")


@reported_step("rounds", "rounds {first} to {last}")
def as_task(first: int, last: int, function: Callable[[], Any]) -> Any:
    """Call a function that trains rounds `first` to `last`."""
    return function()


class Progress(Listener):
    """A listener that reports the rounds of a run to Prefect."""

    def __init__(self, page: FlowPage, rounds: int, done: int) -> None:
        self.page = page
        self.rounds = rounds
        self.done = done
        self._waiting: list[Commit] = []
        self._bar: UUID | None = None
        self.report()

    def committed(self, commit: Commit, rounds: int) -> None:
        """Log the round if it was scored or is the last, else at most once a second; report as often.

        A log line takes Prefect's client and server milliseconds, and a short round takes no longer than that.
        """
        self.done = commit.round
        self._waiting.append(commit)
        due = time.monotonic() - self._reported >= SECONDS_BETWEEN_REPORTS
        if commit.score is not None or due or commit.round == rounds:
            get_run_logger().info("round %d/%d: %s", commit.round, rounds, shown_commit(commit) or "not scored")
        if due:
            self.report()
        # It takes a second, which is there while rounds are computed.
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
        import pandas  # noqa: F401

    def report(self) -> None:
        """Send the progress and all rounds that have not been sent yet."""
        self._reported = time.monotonic()
        self.page.reporter.put(self._update_bar)
        if self._waiting:
            name = self.page.name
            emit_event(
                event="roundweave.round.committed",
                resource={"prefect.resource.id": f"roundweave.run.{name}", "prefect.resource.name": name},
                payload={"rounds": [_row(commit) for commit in self._waiting]},
            )
            self._waiting = []

    def _update_bar(self, client: SyncPrefectClient, _: list[None]) -> None:
        """Set the progress bar to how far the run is now; the reporter may call this long after `report`."""
        percent = 100.0 * self.done / self.rounds
        if self._bar is None:
            self._bar = client.create_artifact(self.page.artifact("progress", "progress", percent)).id
        else:
            client.update_artifact(self._bar, ArtifactUpdate(data=percent))


def _figure(draw: Callable[[Axes], object], panels: int = 1) -> Figure:
    """A figure with a plot of panels, made without pyplot so that no notebook or window shows it by itself."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.0 + 1.6 * panels), layout="constrained")
    draw(figure.subplots())
    return figure


def _row(commit: Commit) -> dict[str, Any]:
    """Return a round as the payload of an event."""
    score = asdict(commit.score) if commit.score else None
    fields = {"round": commit.round, "state": commit.state, "seconds": commit.seconds, "score": score}
    arrivals = {str(p): asdict(u.arrival) for p, u in commit.updates.items() if u.arrival}
    row: dict[str, Any] = finite(fields | ({"arrivals": arrivals} if arrivals else {}))
    return row
