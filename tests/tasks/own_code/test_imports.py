"""Imports without collecting garbage, and what is left of that afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from roundweave.tasks.own_code.imports import Importing, kept

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


def test_what_a_thread_imports_is_there_once_it_is_joined(tmp_path, monkeypatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.2)\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    Importing("nowhere_to_be_found", "slow_to_import").join()
    assert sys.modules.pop("slow_to_import").value == 1
    assert gc.isenabled()


def test_a_process_ends_after_what_is_imported(tmp_path) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.5)\nprint('imported')\n")
    source = f"import sys; sys.path.append({str(tmp_path)!r})\n"
    source += "from roundweave.tasks.own_code.imports import Importing\n"
    source += "Importing('slow_to_import')\nsys.exit('error')"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("imported\n", "error\n", 1)
