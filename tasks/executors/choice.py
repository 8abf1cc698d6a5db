"""Opening an executor by its name."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from roundweave.tasks.executors.base import EXECUTORS, Executor, Setting


@contextmanager
def open_executor(name: str, **setting: Any) -> Iterator[Executor]:
    """Open an executor of the table with the fields of a `Setting`; Dask is imported only if it needs Dask."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)  # a worker that imports a script which trains wherever it is imported; its starter tells why
    with EXECUTORS[name].load().opened(Setting(**setting)) as executor:
        yield executor
