"""Tries whether losses and scores of the user's follow from what they are given alone, as a replay must."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError
from roundweave.tasks.data.examples import Tensors
from roundweave.tasks.networks.outputs import each_tensor
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code

LATER = 1_000_000
"""A number that a call changes is tried as it will be after so many calls."""


def check_pure(name: str, judge: Code, outputs: Any, targets: Tensors) -> None:
    """Raise `ModelError` if a loss or a score gives another value when it is called again, or has parameters.

    `name` is ``loss``, or that of a score.
    """
    function, what = judge.load(), "loss" if name == "loss" else "score"
    if name == "loss" and (learned := _learned(function)):
        raise ModelError(
            f"loss {judge.reference} has a parameter {learned}, which nothing trains; hold it in the network, or "
            "set its requires_grad to False"
        )

    def called() -> torch.Tensor:
        with pinned(0, threads=1, fill=True):
            given = each_tensor(torch.clone, outputs), moved(targets, torch.clone)
            return torch.as_tensor(function(*given)).detach().clone()

    values, spaces = [called()], [*_spaces(function)]
    before = [dict(space) for space in spaces]
    values.append(called())
    count_on(spaces, before)
    values.append(called())
    for space, held in zip(spaces, before, strict=True):
        space.update({key: held[key] for key, _ in _changed(space, held)})
    if any(not torch.equal(each.nan_to_num(), values[0].nan_to_num()) for each in values):
        raise ModelError(
            f"{what} {judge.reference} gives another value when it is called again with what it was given; no "
            "round stores what it keeps: hold that in the network as a buffer, or leave it out"
        )


def count_on(spaces: Sequence[dict[str, Any]], before: Sequence[Mapping[str, Any]]) -> None:
    """Let numbers in namespaces that a call changed be as after so many calls more as `LATER` says."""
    for space, held in zip(spaces, before, strict=True):
        space.update({key: now + LATER * (now - held[key]) for key, now in _changed(space, held)})


def _changed(space: Mapping[str, Any], before: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the names of numbers in a namespace that are others than before, with their values now."""
    numbers = [(key, now) for key, now in space.items() if type(now) in (int, float)]
    return [(key, now) for key, now in numbers if isinstance(before.get(key), int | float) and now != before[key]]


def _spaces(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The namespaces in which a function may keep something: its module's, its own, and those of what it holds."""
    yield getattr(function if inspect.isfunction(function) else type(function).__call__, "__globals__", {})
    yield from (vars(each) for each in (function, *_held(function)) if hasattr(each, "__dict__"))


def _held(function: Any) -> list[Any]:
    """Return the objects in a function's attributes, closure and defaults, but for classes and modules."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    every = *getattr(function, "__dict__", {}).values(), *cells, *(getattr(function, "__defaults__", None) or ())
    return [each for each in every if not inspect.isclass(each) and not inspect.ismodule(each)]


def _learned(function: Any) -> str | None:
    """Return the name of a parameter that a function holds and that wants a gradient; None if there is none."""
    modules = [each for each in (function, *_held(function)) if isinstance(each, nn.Module)]
    return next((name for each in modules for name, p in each.named_parameters() if p.requires_grad), None)
