"""A plugin of pytest for a copy without a plugin of ours: a test that gives one of its options is skipped."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from roundweave.storage.errors import UsageError


@pytest.hookimpl(wrapper=True)
def _skipping() -> Generator[None]:
    try:
        yield
    except UsageError as error:
        for option in os.environ["WITHOUT"].split():
            if f"unknown field {option!r}" in str(error):
                pytest.skip(f"it gives {option}")
        raise


pytest_runtest_setup = pytest_runtest_call = _skipping
