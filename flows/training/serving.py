"""A configuration as a deployment of Prefect, and the process that trains it whenever it is due."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from prefect.runner import Runner
from prefect.settings import PREFECT_UI_URL
from pydantic import ValidationError

from flows.config.files import from_anywhere
from flows.config.train import TrainConfig
from flows.training.flow import train_flow
from storage.errors import UsageError
from storage.places.addresses import joined


class Serving:
    """A deployment that is made at once, and served while it `run`s; raises `UsageError` for no schedule."""

    def __init__(self, config: TrainConfig, name: str, cron: str | None, interval: float | None) -> None:
        self.called = f"{train_flow.name}/{name}"
        self._runner = _Runner(name=name, limit=1)  # one that is due while another trains waits for it
        try:
            self.deployment = self._runner.add_flow(
                train_flow, name=name, cron=cron, interval=interval, parameters=parameters(config)
            )
        except (ValidationError, ValueError) as error:
            raise UsageError(f"{cron or interval!r} is no schedule; give one such as '0 2 * * *'") from error

    @property
    def page(self) -> str:
        """Where it stands on Prefect's page."""
        return f"{PREFECT_UI_URL.value()}/deployments/deployment/{self.deployment}"

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


class _Runner(Runner):
    """Ends on SIGTERM as on SIGINT."""

    def handle_sigterm(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def parameters(config: TrainConfig) -> dict[str, Any]:
    """What a deployment gives the flow, the same from any folder."""
    return {"config": from_anywhere(config) | {"root": joined(Path.cwd(), config.root)}}
