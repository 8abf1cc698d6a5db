"""Exports a network by `torch.export`, as a graph that can be followed."""

from __future__ import annotations

import copy
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path

import torch
import torch.fx.config
from torch import nn

from roundweave.storage.errors import ModelError, one_line
from roundweave.tasks.matching.unofficial import NOISY, tree_map_only

Inputs = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
"""What a module is called with: a tensor (examples, …), several, or several by name as keyword arguments."""


def as_call(inputs: Inputs) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Return the positional and the keyword arguments of a call with these inputs."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return ((inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)), {}


def changed_inputs(inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """Return the inputs whose tensors are replaced by what `change` makes of them."""
    changed: Inputs = tree_map_only(torch.Tensor, change, inputs)
    return changed


def exported(model: nn.Module, inputs: Inputs, training: bool = False) -> torch.export.ExportedProgram:
    """Return a copy of the module, exported for inputs (examples, …), in evaluation mode or not.

    Raises `ModelError`.
    """
    # The copy has the module's own parameters, to save memory; exporting does not change them. In place of those
    # without values stand some that are never touched, so that the system gives them no memory.
    network = evaluating(model, {id(p): _on_cpu(p) if p.is_meta else p for p in model.parameters()})
    network.train(training)
    try:
        with torch.no_grad(), plain_attention(), silent(), warnings.catch_warnings():
            # Recurrent layers reassign their weights, which export takes for a leak and warns of.
            warnings.filterwarnings("ignore", message="The tensor attribute.*assigned during export")
            return torch.export.export(network, *as_call(inputs), strict=False)
    except Exception as error:  # noqa: BLE001, raised without its cause, which would show the whole graph
        why = f"{one_line(error)}{_where(error)}"
        raise ModelError(f"torch.export cannot trace {type(model).__name__}: {why}") from None


def _on_cpu(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(parameter, device="cpu"), requires_grad=parameter.requires_grad)


def evaluating(model: nn.Module, tensors: Mapping[int, torch.Tensor]) -> nn.Module:
    """Return a copy of a module in evaluation mode, without cached values and without a cache of keys and values.

    `tensors` has tensors of the copy by the `id` of the module's tensors in whose place they are. The copy is set
    to training mode in between, as modules drop values that they cached for evaluation then. Raises `ModelError`
    if the module cannot be copied.
    """
    try:
        network = copy.deepcopy(model, dict(tensors)).train().eval()
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"{type(model).__name__} cannot be copied: {one_line(error)}") from error
    for config in [getattr(module, "config", None) for module in network.modules()]:
        if getattr(config, "use_cache", False):
            config.use_cache = False  # type: ignore[union-attr]
    return network


def _where(error: Exception) -> str:
    """Return the place of the last line outside of torch in an error's traceback; empty if there is none."""
    torch_itself = str(Path(torch.__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__)[1:] if not f.filename.startswith(torch_itself)]
    return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""


def first_names(model: nn.Module) -> dict[str, str]:
    """Map every name in a module's state to the first name of the same tensor."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Stop torch from using its fused fast path for encoder layers, which is one opaque operation."""
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextmanager
def silent() -> Iterator[None]:
    """Stop torch from logging and printing errors at length, which are raised anyway.

    Torch also stops recording the source line of each operation, which would take a quarter of the time.
    """
    switches = [(logging.getLogger(name), "disabled") for name in NOISY]
    with redirect_stderr(io.StringIO()), ExitStack() as stack:
        for owner, name in [*switches, (torch.fx.config, "do_not_emit_stack_traces")]:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, True)
        yield
