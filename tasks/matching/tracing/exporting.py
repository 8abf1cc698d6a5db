"""A module as a graph of operations, by `torch.export`."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from storage.errors import ModelError, one_line


def exported(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """A copy of the module in evaluation mode, exported for inputs (examples, …); raises `ModelError`."""
    try:
        with torch.no_grad(), plain_attention(), _silent(), warnings.catch_warnings():
            # Recurrent layers gather their weights anew, which export takes for a leak.
            warnings.filterwarnings("ignore", message="The tensor attribute.*assigned during export")
            return torch.export.export(copy.deepcopy(model).eval(), inputs, strict=False)
    except Exception as error:
        raise ModelError(f"torch.export cannot trace {type(model).__name__}: {one_line(error)}") from error


def first_names(model: nn.Module) -> dict[str, str]:
    """Every name in the module's state, of whatever shapes, to the first one of the same tensor."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Keep torch from taking its fused path for encoder layers, which is a single opaque operation."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep torch from logging the traceback of an error that is told in one line."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
