"""Imports without collecting garbage, and what is left of that afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from roundweave.tasks.own_code.imports import kept

OWN = """
import gc
from roundweave.tasks.own_code.imports import kept

with kept(own=True):
    assert not gc.isenabled()
    made = [[] for _ in range(10000)]
frozen = gc.get_freeze_count()
with kept():
    more = [[] for _ in range(10000)]
print(gc.isenabled(), frozen > 10000, gc.get_freeze_count() >= frozen + 10000)
"""


def test_in_a_process_of_our_own_what_was_made_is_never_looked_through() -> None:
    done = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


def test_elsewhere_nothing_is_left_behind() -> None:
    gc.unfreeze()  # another test of this process may have said that it is our own
    with pytest.raises(ZeroDivisionError), kept():
        assert not gc.isenabled()
        1 / 0  # noqa: B018
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_who_collects_no_garbage_still_collects_none() -> None:
    gc.disable()
    try:
        with kept():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
