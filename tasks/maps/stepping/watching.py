"""Whether a step does the same each time: what it reads and changes besides the tensors of its operations.

A step that reads only what it leaves as it was takes the same way through its code the next time. So what the
user's code does is judged while it runs: the functions that it calls, and the values that outlive them.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import torch

from tasks.maps.stepping.steady import is_steady

OURS = str(Path(__file__).parents[2]) + os.sep
TORCHS = str(Path(torch.__file__).parent) + os.sep
PYTHONS = str(Path(os.__file__).parent) + os.sep
ABSTRACT = "<frozen abc>"  # isinstance and issubclass, where a class decides
INSTALLED = ("site-packages", "dist-packages")

CHANGING = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "IMPORT_FROM")
"""Python's instructions that change what outlives a call."""

PURE = """abs all any callable chr divmod getattr hasattr isinstance issubclass iter len max min next ord pow
repr round sorted sum"""
"""Python's own functions that read nothing but their arguments."""

HOMES = ("torch", "math", "_operator")
"""Modules written in C of which a step may call all functions."""

ESCAPES = """tolist numpy data_ptr untyped_storage _typed_storage __dlpack__ _register_hook_dict _make_subclass"""
"""Methods of a tensor that get at its memory, or at its backward pass, beside the operations."""


class Watcher:
    """Called by Python at each call of a function; `reason` tells what may be otherwise the next time.

    `reads` are the names of files that the user's functions read: where they are, the name, and its value.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.reads: list[tuple[Mapping[str, Any], str, Any]] = []
        self._judged: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        """What Python tells of a call: the frame that calls a function `called` in C, or that of one in Python."""
        if self.reason is not None or frame.f_code.co_filename.startswith(OURS):
            return
        if event == "c_call":
            self.reason = _escape(called) or (None if _is_trusted(frame) else _impure(called))
        elif event == "call" and not _is_trusted(frame):
            self.reason = self._unsteady(frame)

    def _unsteady(self, frame: FrameType) -> str | None:
        """What a call of the user's function reads that may change, or changes itself."""
        code = frame.f_code
        for name in _given(code):
            if name in frame.f_locals and not is_steady(frame.f_locals[name]):
                return f"{code.co_qualname} is given {name}, which may change"
        if code in self._judged:
            return None
        self._judged.add(code)
        known = {**frame.f_builtins, **frame.f_globals}
        for step in dis.get_instructions(code):
            nonlocal_ = step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
            if step.opname in CHANGING or nonlocal_:
                return f"{code.co_qualname} changes {step.argval}"
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                if not is_steady(known.get(step.argval)):
                    return f"{code.co_qualname} reads {step.argval}, which may change"
                self.reads.append((frame.f_globals, step.argval, frame.f_globals.get(step.argval)))
        return None


@contextmanager
def watched() -> Iterator[Watcher]:
    """Within, the calls of this thread are judged, unless another profiler is told of them."""
    watcher, set_before = Watcher(), settings()
    if sys.getprofile() is not None:
        watcher.reason = "another profiler runs"
        yield watcher
        return
    collects = gc.isenabled()
    gc.disable()  # what others have done at a collection is no part of the step
    sys.setprofile(watcher)
    try:
        yield watcher
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
        if set_before != settings():
            watcher.reason = watcher.reason or "it changes a setting of torch's"


def settings() -> tuple[Any, ...]:
    """Settings of torch that decide which operations a step takes."""
    return (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )


def _given(code: CodeType) -> Iterator[str]:
    """The names of a function's cells and arguments, but for those that are collected anew at each call."""
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    yield from (name for name in (*named, *code.co_freevars) if not name.startswith("."))


def _is_trusted(frame: FrameType) -> bool:
    """Whether a function is of this project or torch, or of Python and called by theirs."""
    name = frame.f_code.co_filename
    if name.startswith((OURS, TORCHS, ABSTRACT)):
        return True
    of_python = name.startswith((PYTHONS, "<frozen ")) and not any(folder in name for folder in INSTALLED)
    return of_python and frame.f_back is not None and _is_trusted(frame.f_back)


def _escape(called: Any) -> str | None:
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    # Their state is not compared: other threads of a worker draw from Python's generator, too.
    if isinstance(owner, torch.Generator | random.Random | np.random.RandomState | np.random.Generator):
        return f"it uses a generator's {name}"
    return f"it uses a tensor's {name}" if isinstance(owner, torch.Tensor) and name in ESCAPES.split() else None


def _impure(called: Callable[..., Any]) -> str | None:
    """Why a function that is not written in Python may give something else the next time."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "?")
    if owner is None and getattr(torch._C._VariableFunctions, name, None) == called:
        return None
    if isinstance(owner, ModuleType):
        home = owner.__name__
        sound = name in PURE.split() if home == "builtins" else home.partition(".")[0] in HOMES
    else:
        home = (owner if isinstance(owner, type) else type(owner)).__module__
        sound = owner is not None and home.partition(".")[0] in ("torch", "builtins")
    return None if sound else f"it calls {home}'s {name}"
