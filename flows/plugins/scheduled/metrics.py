"""`roundweave serve --metrics`: how the served runs are, in the format of Prometheus, read when it asks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.plugins.scheduled.dates import dated, names_of_runs
from roundweave.flows.reporting.outcomes import last_score
from roundweave.storage.errors import StoreError, UsageError, reason
from roundweave.storage.parsing import mistakes_as
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.runs.names import holders
from roundweave.storage.runs.run import StoredRun

PLACE = re.compile(r"(?:(.+):)?(\d{1,5})")
"""Matches a port, with the address of this machine before it at which others ask."""


@contextmanager
def answering(config: TrainConfig, place: str, deployment: str = "") -> Iterator[str]:
    """Answer Prometheus at a port, or ``ADDRESS:PORT``, while the context is open; yields the address to ask.

    Without an address only this machine is answered. With a `deployment` Prefect is asked for its nights without a
    run. Raises `UsageError` where that cannot be listened at.
    """
    parts = PLACE.fullmatch(place)
    if parts is None:
        raise UsageError(
            f"--metrics {place!r} is no port; give one such as 9464, or 0.0.0.0:9464 for all machines"
        )
    host, port = parts[1] or "127.0.0.1", int(parts[2])
    registry = CollectorRegistry()
    registry.register(ServedRuns(config, deployment))
    said = f"nobody can listen at --metrics {place}"
    with mistakes_as(
        lambda error: UsageError(f"{said} ({reason(error)}); give another"), (OSError, OverflowError)
    ):
        server, thread = start_http_server(port, host, registry)
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class ServedRuns(Collector):
    """The runs of a configuration, as they lie under its root whenever somebody asks."""

    def __init__(self, config: TrainConfig, deployment: str) -> None:
        self._config, self._deployment, self._root = config, deployment, config.root
        self._names = names_of_runs(config) if config.name else ".*"

    def describe(self) -> Iterable[Metric]:
        """Nothing is read before somebody asks."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """How many runs there are by status, when each began and the last whole one ended, and the newest one."""
        statuses, sound = Counter[str](), list[StoredRun]()
        each = GaugeMetricFamily("roundweave_run", "When each run began", labels=["run", "status"])
        stored = looked_through(self._root, names=self._names)
        for run in stored.values():
            try:
                if isinstance(run, StoreError):
                    raise run
                sound += [run] if run.done >= 0 else []
                statuses[run.status] += 1
                each.add_metric([run.name, run.status], run.created)
            except StoreError as error:
                statuses[error.status] += 1
        nights = _nights_without_run(self._config, self._deployment) if self._deployment else {}
        for (name, status), due in (nights or {}).items():
            if name not in stored:
                statuses[status] += 1
                each.add_metric([name, status], due)
        yield _gauge("prefect_answers", "Whether Prefect tells of nights without a run", nights is not None)
        yield _gauge("runs", "Runs that are stored, and nights that failed without", statuses, "status")
        yield each
        if complete := [run for run in sound if run.status == "complete"]:
            told = "When the newest complete run ended"
            yield _gauge("complete_timestamp_seconds", told, _ended(complete[-1]))
        held = GaugeMetricFamily("roundweave_alias", "Who has an alias", labels=["alias", "run"])
        for alias, name in holders(self._root).items():
            held.add_metric([alias, name], 1)
        yield held
        if sound:
            yield from _of_newest(sound[-1])


def _nights_without_run(config: TrainConfig, deployment: str) -> dict[tuple[str, str], float] | None:
    """When nights were due of which no run may be stored, by name and what became of them; None if nobody says."""
    named, wrong = {"any_": [deployment]}, {"any_": ["Failed", "Crashed", "TimedOut", "Late"]}
    with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
        found = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"name": named}),
            flow_run_filter=FlowRunFilter.model_validate({"state": {"name": wrong}}),
        )
        due = [(dated(config, at).name or run.name, run, at) for run in found if (at := run.expected_start_time)]
        return {(name, f"{run.state_name}".lower()): at.timestamp() for name, run, at in due}
    return None


def _of_newest(run: StoredRun) -> Iterator[Metric]:
    """The name, the status, the numbers and the last scores of a run."""
    score = last_score(run) if run.done else None  # round 0 may be weights that were drawn
    refused = [record for record in run.round(-1).commit.updates.values() if record.refused is not None]
    yield InfoMetricFamily("roundweave_newest_run", "The newest run", {"run": run.name, "status": run.status})
    yield _gauge("newest_run_rounds", "Rounds that it has committed", run.done)
    yield _gauge("newest_run_planned_rounds", "Rounds that it is to have", run.rounds)
    yield _gauge("newest_run_start_timestamp_seconds", "When it began", run.created)
    yield _gauge("newest_run_commit_timestamp_seconds", "When its last round was committed", _ended(run))
    yield _gauge("newest_run_refused_updates", "Updates of its last round that were refused", len(refused))
    yield _gauge("newest_run_score", "Its last scores", score.row() if score else {}, "score")


def _ended(run: StoredRun) -> float:
    """When the last round of a run was committed, in seconds since the epoch."""
    return run.round(-1).commit.time or run.created


def _gauge(name: str, told: str, value: Mapping[str, float] | float, label: str = "") -> Metric:
    """A gauge with a value, or with one for each value of a label."""
    gauge = GaugeMetricFamily(f"roundweave_{name}", told, labels=[label] * bool(label))
    for named, number in value.items() if isinstance(value, Mapping) else [("", value)]:
        gauge.add_metric([named] * bool(label), number)
    return gauge
