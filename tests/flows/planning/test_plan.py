from __future__ import annotations

import pytest

import roundweave as rw
from roundweave.flows.planning.plan import plan
from roundweave.storage.upkeep.keep import Last
from tests.flows.nights import night


class Fills(rw.Plugin):
    """Fills a slot of the plan for an option."""

    option: str

    def plan(self, plan):
        return plan.fill(self.option, mixing=None, schedule=None)


def test_a_slot_is_filled_once_and_a_second_option_is_refused_beside_the_first() -> None:
    assert plan(night(), [Fills(option="one")]).filled == {"mixing": "one", "schedule": "one"}
    with pytest.raises(rw.UsageError, match=r"^two and one both decide the mixing; leave one of them out$"):
        plan(night(), [Fills(option="one"), Fills(option="two")])


class KeepsTheLast(rw.Plugin):
    """Decides what stays of rounds."""

    def plan(self, plan):
        return plan.fill("mine", keep=Last(1))


def test_what_stays_is_decided_by_the_option_or_by_a_plugin() -> None:
    run = rw.train(night(rounds=3), plugins=[KeepsTheLast()], bar=False)
    assert run.kept == [0, 3]
    with pytest.raises(rw.UsageError, match=r"^mine and keep both decide the keep; leave one of them out$"):
        plan(night(keep="states"), [KeepsTheLast()])


def test_an_entry_is_added_to_what_there_is() -> None:
    assert plan(night(patience=3)).add(stops=len).stops[1:] == (len,)
