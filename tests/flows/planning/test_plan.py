from __future__ import annotations

import pytest

import roundweave as rw
from roundweave.flows.planning.plan import plan
from tests.flows.nights import night


class Fills(rw.Plugin):
    """Fills a slot of the plan for an option."""

    option: str

    def plan(self, plan):
        return plan.fill(self.option, topology=None, schedule=None)


def test_a_slot_is_filled_once_and_a_second_option_is_refused_beside_the_first() -> None:
    assert plan(night(), [Fills(option="one")]).filled == {"topology": "one", "schedule": "one"}
    with pytest.raises(rw.UsageError, match=r"^two and one both decide the topology; leave one of them out$"):
        plan(night(), [Fills(option="one"), Fills(option="two")])


def test_an_entry_is_added_to_what_there_is() -> None:
    assert plan(night(patience=3)).add(stops=len).stops[1:] == (len,)
