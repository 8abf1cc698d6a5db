"""A policy of `keep` says what stays of each round, changes no bit, and lets the run go on.

A new policy gets a row in `STAYS`.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import RoundPruned
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import POLICIES, Keep
from roundweave.storage.upkeep.pruning import prune_run
from tests.rows import but_first
from tests.storage.conftest import plain
from tests.training import trained

FIELDS = {"model": "logistic", "partitions": 3, "cohort": 2, "local_steps": 1, "algorithm": "scaffold"}
ROUNDS = 7
EACH = tuple(range(ROUNDS + 1))

STAYS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "all": (EACH, EACH[1:]),
    "states": (EACH, ()),
    "updates:3": ((0, 3, 6, 7), EACH[1:]),
    "every:3": ((0, 3, 6, 7), (3, 6)),
    "last:2": ((0, 6, 7), (6, 7)),
    "recompute:3": ((0, 3, 6, 7), ()),
}
"""By hand, of a run of seven rounds: whose state is stored, and whose updates are."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The store of a run that was trained with a policy, once for all tests."""

    @cache
    def make(text: str) -> Path:
        folder = tmp_path_factory.mktemp("kept")
        return trained(folder, **FIELDS, rounds=ROUNDS, keep=text, name="run").path

    return make


SAME = ("states", "every:3")
"""What they store is what others in the table store of states or of updates."""


@pytest.fixture(params=but_first([text for text in STAYS if text not in SAME], SAME))
def text(request: pytest.FixtureRequest) -> str:
    return request.param


def files(run: Run, array: str) -> list[int]:
    """The rounds of which an array has files of all partitions that took part."""
    place = LocalPlace(run.path)
    rounds = sorted(map(int, place.names(f"{array}/c")))
    parts = {round: place.names(f"{array}/c/{round}") for round in rounds}
    return [r for r in rounds if not array.startswith("updates") or len(parts[r]) == FIELDS["cohort"]]


class TestKeep:
    """What each policy promises."""

    def test_it_is_a_value_that_is_written_as_it_is_read(self, text: str) -> None:
        assert str(Keep.of(text)) == text
        assert pickle.loads(pickle.dumps(Keep.of(text))) == Keep.of(f" {text} ")

    def test_what_it_names_is_stored_and_nothing_else_but_what_goes_on_needs(self, text: str, made) -> None:
        run, (states, updates), keep = Run(made(text)), STAYS[text], Keep.of(text)
        assert tuple(files(run, "params/1.weight")) == states
        sent, carried = set(files(run, "updates/float32")), set(run.round(-1).commit.carry_from.values())
        assert set(updates) <= sent
        assert sent <= {*updates, *carried} or keep.maps_again
        assert keep.counts(ROUNDS) == (len(states), len(updates))

    def test_each_round_opens_with_the_same_bits_and_what_is_not_there_is_computed_again(self, text, made) -> None:
        stored, run, whole = Run(made(text)), Run(made(text)), Run(made("all"))
        assert stored.kept == [*STAYS[text][0]]
        for round in EACH:
            assert run.round(round).commit.state == whole.round(round).commit.state
            assert plain(run.round(round).state) == plain(whole.round(round).state)
            if round not in stored.kept:
                with pytest.raises(RoundPruned, match=f"the state of round {round} of .* was not stored"):
                    RoundStore(stored.path).tensors.read_state(round)

    def test_numbers_and_records_of_all_rounds_stay_and_the_store_is_sound(self, text: str, made) -> None:
        run, whole = Run(made(text)), Run(made("all"))
        assert run.history().drop(columns="seconds").equals(whole.history().drop(columns="seconds"))
        assert (run.committed, run.lost, run.verify().findings) == ([*EACH], [], ())

    def test_the_run_goes_on_to_the_bits_of_one_that_keeps_all(self, text: str, made, tmp_path) -> None:
        def longer(keep: str) -> str:
            root = tmp_path / keep[:3]
            shutil.copytree(made(keep), root / "run.zarr")
            return trained(root, **FIELDS, rounds=ROUNDS + 2, keep=keep, name="run").digest

        assert len({longer(keep) for keep in {"all", text}}) == 1

    def test_a_run_that_kept_all_can_be_pruned_to_it(self, text: str, made, tmp_path) -> None:
        run, whole = shutil.copytree(made("all"), tmp_path / "run.zarr"), Run(made("all"))
        prune_run(RoundStore(run), Keep.of(text))
        _, updates = STAYS[text]
        pruned = open_run(run)
        assert tuple(files(pruned, "updates/float32"))[: len(updates)] == updates
        for round in EACH:
            assert plain(pruned.round(round).state) == plain(whole.round(round).state)
        assert pruned.verify().findings == ()


def test_each_policy_has_a_row() -> None:
    assert {text.partition(":")[0] for text in STAYS} == set(POLICIES)
