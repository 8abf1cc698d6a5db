"""Processes with equal fingerprints promise equal bits."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.errors import NumericsMismatch
from roundweave.tasks.numerics.fingerprints import check_fingerprint, fingerprint


def test_equal_fingerprints_pass_and_unequal_ones_name_what_differs() -> None:
    mine = fingerprint()
    versions = {"torch", "python", "numpy", "scikit-learn"}
    assert set(mine) == versions | {"build", "processor", "instructions", "overrides"}
    assert mine["torch"] == torch.__version__
    check_fingerprint(mine, dict(mine), "here")
    other = mine | {"torch": "0.1", "instructions": "ABACUS"}
    with pytest.raises(NumericsMismatch) as caught:
        check_fingerprint(mine, other, "worker seven")
    text = str(caught.value)
    assert text.startswith("worker seven would compute other bits than this run: ")
    assert f"torch '0.1' instead of {torch.__version__!r}" in text
    assert f"instructions 'ABACUS' instead of {mine['instructions']!r}" in text
    assert "build" not in text
    with pytest.raises(NumericsMismatch, match="processor None instead of"):
        check_fingerprint(mine, {key: value for key, value in mine.items() if key != "processor"}, "here")


def test_overrides_count_but_thread_counts_do_not(monkeypatch) -> None:
    before = fingerprint()
    fingerprint.cache_clear()
    try:
        monkeypatch.setenv("MKL_NUM_THREADS", "7")
        monkeypatch.setenv("MKL_CBWR", "AVX2")
        monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # as scikit-learn's import does
        assert set(fingerprint()["overrides"].split()) - set(before["overrides"].split()) == {"MKL_CBWR=AVX2"}
    finally:
        fingerprint.cache_clear()
