"""The names of the package: loaded when they are used, and no others."""

from __future__ import annotations

import subprocess
import sys

import tasks.matching


def test_every_public_name_leads_to_what_is_called_so():
    names = ["UnitGroups", "average", "check_function", "find_units", "match"]
    assert sorted(tasks.matching.__all__) == names
    assert [getattr(tasks.matching, name).__name__ for name in names] == names


def test_importing_the_package_does_not_import_torch():
    code = "import sys, tasks.matching; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
