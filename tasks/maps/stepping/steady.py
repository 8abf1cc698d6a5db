"""Which values stay as they are between two steps, as far as can be seen."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import BuiltinFunctionType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from storage.values.tensors import same_bits

ATOMS = (bool, int, float, complex, str, bytes, type(None), EllipsisType, enum.Enum, range, slice)
ATOMS_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
MODULES = ("torch", "math", "operator", "typing", "functools", "itertools", "collections", "__future__")
"""Modules whose attributes a step may read."""

OWN_TABLES = ("_parameters", "_buffers", "_modules")
"""What a module has of tensors and modules; they are compared apart."""


def is_steady(value: Any) -> bool:
    """Whether nothing that a function is given, or reads by a name, can be changed by way of this value.

    Tensors count, since the operations on them are seen, and modules, whose attributes are compared.
    """
    if isinstance(value, (*ATOMS, *ATOMS_OF_TORCH, torch.Tensor, nn.Module, BuiltinFunctionType)):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(is_steady, value))
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in MODULES
    if isinstance(value, type):
        return _is_steady_class(value)
    if isinstance(value, MethodType):
        return is_steady(value.__self__) and is_steady(value.__func__)
    return isinstance(value, FunctionType) and (_is_torchs(value) or not vars(value))


def _is_steady_class(kind: type) -> bool:
    """Whether a class, and those that it is made of, have nothing that their instances could change together."""
    for base in kind.__mro__:
        if _is_torchs(base) or base.__module__ in ("builtins", "typing", "enum", "abc"):
            continue
        for name, value in vars(base).items():
            plain = isinstance(value, staticmethod | classmethod | property | FunctionType)
            if not (name.startswith("__") or name == "_abc_impl" or plain or is_steady(value)):
                return False
    return True


def _is_torchs(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "torch"


def unsteady(network: nn.Module, built: nn.Module) -> str | None:
    """Why a network's steps may depend on more than its tensors; None where it is otherwise as it was built."""
    if _has_any_global_hook():
        return "there are hooks for all modules"
    own = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
    modules, others = dict(network.named_modules()), dict(built.named_modules())
    if list(modules) != list(others):
        return "it has other modules than when it was built"
    for name, module in modules.items():
        where = f"module {name or type(module).__name__}"
        if reason := _unsteady(module, others[name], own):
            return f"{where} {reason}"
    return None


def _unsteady(module: nn.Module, built: nn.Module, own: set[int]) -> str | None:
    kind = type(module)
    if _is_torchs(kind) and not kind.__module__.startswith("torch.nn.modules."):
        return f"is a {kind.__name__}"
    if type(built) is not kind or not _is_steady_class(kind):
        return "is of a class that may change"
    mine, theirs = vars(module), vars(built)
    if set(mine) != set(theirs):
        return "has other attributes than when it was built"
    for name, value in mine.items():
        if name in OWN_TABLES:
            same = _is_same_table(value, theirs[name])
        elif name.endswith("_hooks"):
            same = not value
        else:
            same = _is_same(value, theirs[name], own)
        if not same:
            return f"has {name}, which may change"
    return None


def _is_same_table(table: Mapping[str, Any], built: Mapping[str, Any]) -> bool:
    """Whether a module's tensors and modules have the names and kinds that they were built with."""
    return list(table) == list(built) and all(type(table[name]) is type(built[name]) for name in table)


def _is_same(value: Any, built: Any, own: set[int]) -> bool:
    """Whether an attribute is plain, and as it was built."""
    if type(value) is not type(built):
        return False
    match value:
        case torch.Tensor():
            same = id(value) in own or same_bits(value, built)
        case Mapping():
            same = list(value) == list(built) and all(_is_same(value[key], built[key], own) for key in value)
        case list() | tuple():
            same = len(value) == len(built) and all(map(_is_same, value, built, [own] * len(value)))
        case set() | frozenset():
            same = value == built and all(map(is_steady, value))
        case FunctionType() | BuiltinFunctionType() | type():
            same = value is built and is_steady(value)
        case _:
            same = isinstance(value, (*ATOMS, *ATOMS_OF_TORCH)) and value == built
    return bool(same)
