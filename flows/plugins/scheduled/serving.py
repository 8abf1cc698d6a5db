"""Makes Prefect deployments of a configuration, and runs the process that trains it on schedule."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import get_client
from prefect.deployments.runner import DeploymentApplyError
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.schedules import Cron
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.types.entrypoint import EntrypointType

from roundweave.flows.config.files import from_anywhere
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.training.flow import train_flow
from roundweave.storage.errors import ClusterError, UsageError, one_line
from roundweave.storage.parsing import mistakes_as
from roundweave.storage.places.base import join_address


class Serving:
    """A Prefect deployment, created at once and served by `run`; raises `UsageError` for a bad schedule.

    `cron` is a cron expression and `interval` a number of seconds.
    """

    def __init__(self, config: TrainConfig, name: str, cron: str | None, interval: float | None) -> None:
        self.called = f"{train_flow.name}/{name}"
        # A run that is due while as many train as may waits for the end of one.
        self._runner = _Runner(name=name, limit=config.concurrency or 1)
        with _schedule(cron, interval):
            self.deployment = self._runner.add_flow(train_flow, name=name, **_options(config, cron, interval))
        self.page = page_of(self.deployment)

    def run(self) -> None:
        """Train on schedule until SIGINT or SIGTERM; a training that is running then is asked to end."""
        # Ctrl-C in a terminal reaches all its processes. Training processes inherit this thread's blocked SIGINT,
        # so that they end in order instead; a second thread is there to receive this process's SIGINT.
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        asyncio.run(self._until_interrupted())

    async def _until_interrupted(self) -> None:
        before = psutil.Process().children()
        serving = asyncio.ensure_future(self._runner.start())
        interrupted = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
        interrupt = asyncio.ensure_future(interrupted.wait())
        await asyncio.wait([serving, interrupt], return_when=asyncio.FIRST_COMPLETED)
        for process in psutil.Process().children():
            if process not in before:
                process.terminate()
        interrupt.cancel()
        if interrupted.is_set():
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def deploy(config: TrainConfig, name: str, pool: str, cron: str | None, interval: float | None) -> UUID:
    """Create or replace a deployment that the workers of a work pool train; they need Roundweave installed.

    Returns the deployment's id. Raises `UsageError` for a bad schedule or an unknown pool, and `ClusterError` if
    Prefect does not answer.
    """
    with _schedule(cron, interval):
        # The flow is named by its module, so that a worker imports it from its installed package.
        deployment: Any = train_flow.to_deployment(
            name,
            **_options(config, cron, interval),
            work_pool_name=pool,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
    try:
        with get_client(sync_client=True) as client:
            # Applying an existing deployment to a missing pool would end in a server error.
            client.read_work_pool(pool)
        applied: UUID = deployment.apply()
        return applied
    except ObjectNotFound as error:
        make = f"`prefect work-pool create {pool} --type process` makes one"
        raise UsageError(f"Prefect has no work pool {pool!r}; {make}") from error
    except DeploymentApplyError as error:
        raise UsageError(f"Prefect refuses the deployment: {one_line(error)}") from error
    except httpx.HTTPError as error:
        raise ClusterError(f"Prefect at {PREFECT_API_URL.value()} does not answer ({one_line(error)})") from error


def page_of(deployment: object) -> str:
    """The address of a deployment's web page."""
    return f"{PREFECT_UI_URL.value()}/deployments/deployment/{deployment}"


def _options(config: TrainConfig, cron: str | None, interval: float | None) -> dict[str, Any]:
    """A deployment's schedule, its tags, how many of its runs go on at once, and the flow's parameters.

    A cron expression is by the clock of the configuration's time zone. The flow's parameter is the configuration,
    with absolute paths.
    """
    parameters = {"config": from_anywhere(config) | {"root": join_address(Path.cwd(), config.root)}}
    options: dict[str, Any] = {"interval": interval, "parameters": parameters}
    options |= {"tags": [*config.tags], "concurrency_limit": config.concurrency}
    return options if cron is None else options | {"schedule": Cron(cron, timezone=vars(config)["timezone"])}


def _schedule(cron: str | None, interval: float | None) -> AbstractContextManager[None]:
    """Turn errors with which Prefect refuses a schedule into `UsageError`."""
    said = f"{interval if cron is None else cron!r} is no schedule; give one such as '0 2 * * *'"
    return mistakes_as(lambda error: UsageError(said), (ValueError, OverflowError))


class _Runner(Runner):
    """A Prefect runner that treats SIGTERM like SIGINT."""

    def handle_sigterm(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
