"""A configuration as a deployment of Prefect, and the process that trains it whenever it is due."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import get_client
from prefect.deployments.runner import DeploymentApplyError
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from flows.config.files import from_anywhere
from flows.config.train import TrainConfig
from flows.training.flow import train_flow
from storage.errors import ClusterError, UsageError, one_line
from storage.places.addresses import joined


class Serving:
    """A deployment that is made at once, and served while it `run`s; raises `UsageError` for no schedule."""

    def __init__(self, config: TrainConfig, name: str, cron: str | None, interval: float | None) -> None:
        self.called = f"{train_flow.name}/{name}"
        self._runner = _Runner(name=name, limit=1)  # one that is due while another trains waits for it
        with _schedule(cron, interval):
            self.deployment = self._runner.add_flow(
                train_flow, name=name, cron=cron, interval=interval, parameters=parameters(config)
            )
        self.page = page_of(self.deployment)

    def run(self) -> None:
        """Train when it is due, until SIGINT or SIGTERM; what is being trained then is told to end in order."""
        # A terminal interrupts all its processes. Those that train are begun by this thread and inherit that it
        # takes no interrupts, so that there must be another that does.
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        asyncio.run(self._until_told())

    async def _until_told(self) -> None:
        before = psutil.Process().children()
        serving = asyncio.ensure_future(self._runner.start())
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, told.set)
        telling = asyncio.ensure_future(told.wait())
        await asyncio.wait([serving, telling], return_when=asyncio.FIRST_COMPLETED)
        for process in psutil.Process().children():
            if process not in before:
                process.terminate()
        telling.cancel()
        if told.is_set():
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def deploy(config: TrainConfig, name: str, pool: str, cron: str | None, interval: float | None) -> UUID:
    """Make a deployment, or make it anew, that workers of a pool train which have Roundweave installed.

    Raises `UsageError` for no schedule or no such pool, `ClusterError` where Prefect does not answer.
    """
    with _schedule(cron, interval):
        # By its module: a worker has the package, and needs neither this folder nor a copy of it.
        deployment: Any = train_flow.to_deployment(
            name,
            cron=cron,
            interval=interval,
            parameters=parameters(config),
            work_pool_name=pool,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
    try:
        with get_client(sync_client=True) as client:
            # Where the deployment is there already, applying it to no pool would end in a server's error.
            client.read_work_pool(pool)
        applied: UUID = deployment.apply()
        return applied
    except ObjectNotFound as error:
        make = f"`prefect work-pool create {pool} --type process` makes one"
        raise UsageError(f"Prefect has no work pool {pool!r}; {make}") from error
    except DeploymentApplyError as error:
        raise UsageError(f"Prefect does not take it: {one_line(error)}") from error
    except httpx.HTTPError as error:
        raise ClusterError(f"Prefect at {PREFECT_API_URL.value()} does not answer ({one_line(error)})") from error


def page_of(deployment: object) -> str:
    """Where a deployment stands on Prefect's page."""
    return f"{PREFECT_UI_URL.value()}/deployments/deployment/{deployment}"


@contextmanager
def _schedule(cron: str | None, interval: float | None) -> Iterator[None]:
    """Within, what Prefect refuses is the schedule."""
    try:
        yield
    except (ValidationError, ValueError) as error:
        raise UsageError(f"{cron or interval!r} is no schedule; give one such as '0 2 * * *'") from error


class _Runner(Runner):
    """Ends on SIGTERM as on SIGINT."""

    def handle_sigterm(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def parameters(config: TrainConfig) -> dict[str, Any]:
    """What a deployment gives the flow, the same from any folder."""
    return {"config": from_anywhere(config) | {"root": joined(Path.cwd(), config.root)}}
