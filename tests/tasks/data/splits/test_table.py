"""The table of splits: texts that stand for a split, and one clear line for every other, before data is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storage.errors import UsageError
from tasks.data.splits.deals import SPLITS
from tasks.data.splits.split import Split


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("odd", "unknown split 'odd'; there are iid, contiguous"),
        ("contigous", "did you mean contiguous?"),
        ("iid:3", "split iid takes no '3'"),
    ],
)
def test_other_texts_are_one_clear_line(kind: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Split(2, kind)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_split_says_what_it_is() -> None:
    assert all(entry.about and "\n" not in entry.about for entry in SPLITS.values())


def test_only_a_random_split_can_be_drawn_again() -> None:
    assert Split(2, "iid", resplit_every=3).deal.random
    with pytest.raises(UsageError, match="resplit_every needs a random split, and contiguous is always the same"):
        Split(2, "contiguous", resplit_every=3)


def test_the_table_is_read_without_torch() -> None:
    script = "import sys\nfrom tasks.data.splits.deals import SPLITS\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
