"""Which runs of several are removed: by age, by rank, and never one that is written or that another one needs."""

from __future__ import annotations

import time

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import NotARun, StoreError, UsageError
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.commits import Score
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.listing import looked_through, stored_bytes
from roundweave.storage.runs.names import give_alias, run_address
from roundweave.storage.runs.removing import YOUNGER, Eligible, protected, remove
from roundweave.storage.upkeep.pruning import remove_run
from roundweave.storage.upkeep.verifying.verify import verify
from tests.storage.upkeep.dying import Dying, Killed, bury

DAY = 86_400


def night(tiny, name: str, days: float, loss: float = 1.0, rounds: int = 1, left_out: int = 0, **config) -> None:
    """A run that began so many days ago and has one of so many rounds, with this loss and accuracy 1 - loss."""
    score, created = Score(loss, {"accuracy": 1 - loss}, 8, left_out), time.time() - days * DAY
    tiny.run({"score": score}, name=name, rounds=rounds, created=created, **config)


def stay(tiny, fitting: Eligible) -> dict[str, str]:
    """Why each run under the root stays; empty for those that go."""
    runs = {run_address(tiny.folder, name): run for name, run in looked_through(tiny.folder).items()}
    return {each.name: each.stays for each in fitting.removals(tiny.folder, runs)}


def test_only_what_began_longer_ago_goes(tiny) -> None:
    night(tiny, "old", 15)
    night(tiny, "new", 13)
    assert stay(tiny, Eligible(14 * DAY)) == {"old": "", "new": YOUNGER}
    assert stay(tiny, Eligible()) == {"old": "", "new": ""}


def test_the_best_that_are_complete_stay_by_the_direction_of_the_score(tiny) -> None:
    for name, loss in zip("abcd", (0.5, 0.1, 0.2, 0.4), strict=True):
        night(tiny, name, 20, loss)
    night(tiny, "cut", 20, 0.01, rounds=2)
    night(tiny, "nan", 20, float("nan"))
    for by in ("loss", "accuracy"):
        best = dict.fromkeys("bc", f"it is one of the best 2 by {by}")
        assert stay(tiny, Eligible(14 * DAY, 2, by)) == dict.fromkeys(("a", "d", "cut", "nan"), "") | best


def test_a_loss_that_leaves_out_examples_is_no_best_one(tiny) -> None:
    night(tiny, "part", 20, 0.1, left_out=3)
    night(tiny, "whole", 20, 0.4)
    assert stay(tiny, Eligible(best=1)) == {"part": "", "whole": "it is one of the best 1 by loss"}


def test_who_has_an_alias_stays_and_who_had_it_before(tiny) -> None:
    for name in "abcd":
        night(tiny, name, 20)
    for run in ("a", "b", None, "c", "b", "d"):
        give_alias(tiny.folder, "champion", run, "by hand")
    before = "it was, before the present one, champion"
    assert stay(tiny, Eligible()) == {"a": "", "b": before, "c": "", "d": "it is champion"}


def test_a_score_that_no_run_has_is_refused(tiny) -> None:
    night(tiny, "a", 1)
    with pytest.raises(UsageError, match=r"no complete run has the score 'acuracy'; did you mean accuracy\?"):
        stay(tiny, Eligible(best=1, by="acuracy"))


def test_what_cannot_be_opened_stays_unless_it_is_named_itself(tiny, flip) -> None:
    night(tiny, "hurt", 20)
    flip(tiny.folder / "hurt.zarr/commits/1.json", 5)
    flip(tiny.folder / "hurt.zarr/commits/0.json", 5)
    (tiny.folder / "theirs.zarr").mkdir()
    told = stay(tiny, Eligible())
    assert "attributes in zarr.json" in told["hurt"]
    assert "is not a run of Roundweave" in told["theirs"]
    named = [run_address(tiny.folder, name) for name in told]
    told = stay(tiny, Eligible(named=named))
    assert told["hurt"] == ""
    assert "is not a run of Roundweave" in told["theirs"]


def test_a_run_whose_order_another_one_goes_on_by_stays_until_that_is_complete(tiny) -> None:
    night(tiny, "first", 20)
    night(tiny, "again", 20, rounds=2, order="recorded:first")
    assert protected(tiny.folder) == {"first": "again needs it to go on, in its recorded order"}
    assert stay(tiny, Eligible()) == {"first": protected(tiny.folder)["first"], "again": ""}
    night(tiny, "third", 20, order="recorded:again")
    assert list(protected(tiny.folder)) == ["first"]


def test_a_link_is_not_followed(tiny) -> None:
    night(tiny, "first", 20)
    (tiny.folder / "link.zarr").symlink_to(tiny.folder / "first.zarr")
    told = stay(tiny, Eligible())
    assert (told["first"], "is a link to a run" in told["link"]) == ("", True)


def test_bytes_are_those_of_all_files(tiny) -> None:
    night(tiny, "first", 20)
    place = place_of(tiny.folder / "first.zarr")
    assert stored_bytes(place) == sum(place.sizes().values()) > 1000
    runs = {str(place): Run(place)}
    assert [each.bytes for each in Eligible().removals(tiny.folder, runs)] == [stored_bytes(place)]


def test_a_run_that_is_claimed_before_its_removal_stays_whole(tiny) -> None:
    night(tiny, "first", 20)
    place = LocalPlace(tiny.folder / "first.zarr")
    removals = Eligible().removals(tiny.folder, {str(place): Run(place)})
    with hold_lease(place, "mine"):
        (told,) = remove(removals)
        for fitting in (Eligible(14 * DAY), Eligible(named=[str(place)])):
            assert "is being written by process" in stay(tiny, fitting)["first"]
    assert (told.bytes, "is being written by process" in told.stays) == (0, True)
    assert verify(place).sound
    assert stay(tiny, Eligible(14 * DAY)) == {"first": ""}


def test_who_removes_a_run_has_claimed_it(tiny, monkeypatch) -> None:
    """A writer that looked before is refused, or stopped at its next write."""
    night(tiny, "first", 20)
    place = LocalPlace(tiny.folder / "first.zarr")
    delete, refused = LocalPlace.delete, []

    def deleting(self: LocalPlace, prefix: str) -> None:
        if prefix == "zarr.json":
            with pytest.raises(StoreError, match="is being written by process"), hold_lease(place, "other"):
                pass
            refused.append(prefix)
        delete(self, prefix)

    monkeypatch.setattr(LocalPlace, "delete", deleting)
    remove_run(place)
    assert refused == ["zarr.json"]
    assert not place.path.exists()


def test_what_a_removal_leaves_that_died_is_no_run(small) -> None:
    path = small.train(small.create(), 2).path
    for claimed_or_marked_or_deleted in (0, 1, 2):
        with pytest.raises(Killed):
            remove_run(Dying(path, claimed_or_marked_or_deleted))
        bury(path)
        assert Run(path).done == 2
    with pytest.raises(Killed):
        remove_run(Dying(path, 3))
    bury(path)
    assert (path / "commits/2.json").exists()
    with pytest.raises(NotARun):
        Run(path)
    assert stay(small, Eligible(14 * DAY))[path.stem] == ""  # so a clean-up of what is old finishes it
    [rest] = Eligible(14 * DAY).removals(small.folder, {str(path): NotARun("it is missing")})
    assert (rest.name, rest.stays) == (path.stem, "")
    remove_run(LocalPlace(path))
    assert not path.exists()
