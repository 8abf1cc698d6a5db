"""How large a network may become that is built in this process, and networks that are built without values."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

MOST_BYTES = 1 << 26
"""The most bytes of parameters that a client's process builds."""

_most: ContextVar[int | None] = ContextVar("most", default=None)


class TooLarge(BaseException):
    """Raised for a network with more parameters than this process may build.

    It is no `Exception`, so that users' code does not catch it.
    """


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """A context in which building a network with more bytes of parameters raises `TooLarge`."""
    before = _most.set(size)
    try:
        yield
    finally:
        _most.reset(before)


@contextmanager
def measured() -> Iterator[None]:
    """A context for building one network, which is given up as soon as it has more parameters than it may have."""
    if (most := _most.get()) is None:
        yield
        return
    built = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal built
        built += 0 if parameter is None else parameter.nbytes
        if built > most:
            raise TooLarge

    # A layer registers its parameters while they have no values, which take no memory yet.
    with register_module_parameter_registration_hook(count):
        yield


@contextmanager
def without_values() -> Iterator[None]:
    """A context for building a network whose parameters lie on the meta device as soon as a module has them."""
    made: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def emptied(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        own, empty = made.get(id(parameter), (None, None))
        if own is None or empty is None or own() is not parameter:  # else it is tied to one that is there
            empty = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
            made[id(parameter)] = weakref.ref(parameter), empty
        return empty

    with register_module_parameter_registration_hook(emptied):  # type: ignore[arg-type] # it may give another
        yield
