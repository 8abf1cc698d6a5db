"""How large a network may become that is built in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

MOST_BYTES = 1 << 26
"""The most bytes of parameters that a client's process builds."""

_most: ContextVar[int | None] = ContextVar("most", default=None)


class TooLarge(BaseException):
    """Raised for a network with more parameters than this process may build. It is no `Exception`, so that users'
    code does not catch it.
    """


class _NoneLarger(TorchFunctionMode):
    """Raises `TooLarge` instead of making an empty tensor of so many bytes of float32, with which layers begin."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.empty and args:
            shape = args[0] if isinstance(args[0], Sequence) else args
            if math.prod(shape) * torch.float32.itemsize > self.size:
                raise TooLarge
        return function(*args, **(kwargs or {}))


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

    counting = register_module_parameter_registration_hook(count)
    try:
        with _NoneLarger(most):
            yield
    finally:
        counting.remove()
