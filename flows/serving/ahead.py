"""What a flow works with: the values of its configuration and an executor, made ahead of it where they can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from flows.config.train import Placement
from flows.reporting.listening import notice
from flows.serving.server import import_prefect, prefect_api, start_server
from storage.errors import ClusterError
from storage.places.schemes import place_of
from tasks.executors.base import Executor
from tasks.executors.choice import open_executor

AnyConfig = TypeVar("AnyConfig", bound=Placement)


class HasConfig(Protocol):
    """The values of a configuration, which they hold."""

    @property
    def config(self) -> Placement:
        """The configuration, complete."""
        ...


AnyResolved = TypeVar("AnyResolved", bound=HasConfig)
Resolve = Callable[[AnyConfig], AnyResolved]

_ahead: ContextVar[tuple[Any, Executor] | None] = ContextVar("ahead", default=None)


@contextmanager
def ahead(resolved: HasConfig) -> Iterator[None]:
    """Within, flows find these values and an executor, and report to Prefect if its server comes up.

    All come up at once. A server that only imports may be there before; neither it nor a cluster is begun to be
    used for values that cannot be had.
    """
    config = resolved.config
    place_of(config.root).make()
    start_server(config.root)
    importing = import_prefect(config.root)
    with _executor(config) as executor, ExitStack() as stack:
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
def started(resolve: Resolve[AnyConfig, AnyResolved], config: AnyConfig) -> Iterator[tuple[AnyResolved, Executor]]:
    """The values and the executor that were made ahead of a flow, else new ones, the values first."""
    made = _ahead.get()
    if made is not None and made[0].config == config:
        yield made
        return
    resolved = resolve(config)
    with _executor(resolved.config) as executor:
        yield resolved, executor


def _executor(config: Placement) -> AbstractContextManager[Executor]:
    return open_executor(config.executor, notice=notice, **config.placed)
