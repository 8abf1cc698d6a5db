"""The names of the package: loaded when they are used, and no others."""

from __future__ import annotations

import roundweave.tasks.matching


def test_every_public_name_leads_to_what_is_called_so():
    names = ["UnitGroups", "average", "check_function", "find_units", "match"]
    assert sorted(roundweave.tasks.matching.__all__) == names
    assert [getattr(roundweave.tasks.matching, name).__name__ for name in names] == names
