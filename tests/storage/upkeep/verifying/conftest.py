"""All that can be asked of a run."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, methodcaller
from pathlib import Path

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import StoreError
from tests.storage.conftest import plain

ASKED = ["config", "algorithm", "created", "attributes", "rounds", "partitions", "done", "committed", "lost"]
ASKED += ["digest", "chain", "stop", "failure", "damaged", "status", "scores", "tensors"]


OF_ANY_ROUND = {name: attrgetter(name) for name in ("state", "commit")}
OF_A_LATER_ROUND = OF_ANY_ROUND | {"owners": attrgetter("owners")}
OF_A_LATER_ROUND |= {f"{what} of {p}": methodcaller(what, p) for what in ("update", "match") for p in (0, 1)}


def questions(rounds: range) -> dict[str, Callable[[Run], object]]:
    """All that can be asked of a run of these rounds, by what it is."""
    asked: dict[str, Callable[[Run], object]] = {name: attrgetter(name) for name in ASKED}
    asked |= {"repr": repr, "history": lambda run: run.history()}
    asked["tensors over rounds"] = lambda run: {name: run[name].values for name in run.tensors}
    for number in rounds:
        for what, ask in (OF_A_LATER_ROUND if number else OF_ANY_ROUND).items():
            asked[f"{what} {number}"] = lambda run, r=number, ask=ask: ask(run.round(r))
    return asked


@pytest.fixture
def answers() -> Callable[[Path, range], dict[str, object]]:
    """What a run says to each question; the error where it refuses to answer, or cannot be opened at all."""

    def ask(path: Path, rounds: range) -> dict[str, object]:
        def answer(question: Callable[[Run], object]) -> object:
            try:
                return plain(question(run))
            except StoreError as error:
                return error

        try:
            run = Run(path)
        except StoreError as error:
            return dict.fromkeys(questions(rounds), error)
        return {what: answer(question) for what, question in questions(rounds).items()}

    return ask
