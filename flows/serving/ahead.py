"""Makes what a flow needs, its resolved configuration and an executor, before the flow begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from roundweave.flows.config.train import Placement
from roundweave.flows.reporting.listening import notice
from roundweave.flows.serving.server import prefect_api, prefect_server
from roundweave.storage.errors import ClusterError
from roundweave.storage.places.schemes import place_of
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.choice import open_executor
from roundweave.tasks.own_code.imports import Importing

AnyConfig = TypeVar("AnyConfig", bound=Placement)


class HasConfig(Protocol):
    """A resolved configuration: objects made from it, together with the completed configuration itself."""

    @property
    def config(self) -> Placement:
        """The configuration with all defaults filled in."""
        ...


AnyResolved = TypeVar("AnyResolved", bound=HasConfig)

_ahead: ContextVar[tuple[Any, Executor] | None] = ContextVar("ahead", default=None)


@contextmanager
def ahead(resolved: HasConfig) -> Iterator[None]:
    """Start an executor and a Prefect server at once; flows in the context use them by `started_executor`.

    If Prefect's server does not start, a notice says so and flows report nothing. The configuration is resolved
    before anything is started, so that a wrong one is reported at once.
    """
    config = resolved.config
    place_of(config.root).make()
    with prefect_server(config.root), ExitStack() as stack:
        # Prefect needs `fastapi.encoders` to record a flow's parameters. Both take as long as a cluster's start.
        importing = Importing("prefect.flows", "fastapi.encoders")
        executor = stack.enter_context(_executor(config))
        importing.join()
        try:
            stack.enter_context(prefect_api(config.root))
        except ClusterError as error:
            notice(f"{error}; nothing is reported")
        token = _ahead.set((resolved, executor))
        try:
            yield
        finally:
            _ahead.reset(token)


@contextmanager
def started_executor(
    resolve: Callable[[AnyConfig], AnyResolved], config: AnyConfig
) -> Iterator[tuple[AnyResolved, Executor]]:
    """Yield the resolved configuration and the executor that `ahead` made for this configuration.

    Outside `ahead`, the configuration is resolved first and then an executor is started.
    """
    made = _ahead.get()
    if made is not None and made[0].config == config:
        yield made
        return
    resolved = resolve(config)
    with _executor(resolved.config) as executor:
        yield resolved, executor


def _executor(config: Placement) -> AbstractContextManager[Executor]:
    return open_executor(config.executor, notice=notice, **config.placed)
