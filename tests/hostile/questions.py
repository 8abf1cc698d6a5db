"""What a notebook asks of a run; each answer is had, or is refused by an error of Roundweave's."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from roundweave.storage.errors import RoundweaveError

Questions = tuple[Callable[[Any], object], ...]

RECORDED = (
    *("name", "status", "rounds", "done", "partitions", "committed", "kept", "absent", "lost", "digest", "chain"),
    *("stop", "failure", "damaged", "scores", "created", "algorithm"),
)

QUESTIONS: dict[str, Questions] = {
    "recorded": (repr, *(lambda run, n=name: repr(getattr(run, n))[:500] for name in RECORDED)),
    "cards": (
        *(str, lambda run: repr(run.round(-1)), lambda run: str(run.round(-1))),
        *(lambda run: repr(run.round(-1).score)[:500], lambda run: repr(run.round(-1).refused)[:500]),
    ),
    "numbers": (
        *(lambda run, n=name: len(getattr(run, n)()) for name in ("history", "arrivals", "divergence", "changes")),
        *(lambda run, ask=ask: len(ask(run)) for ask in map(attrgetter, ("ds", "tree.children"))),
        *(lambda run: len(run.examples(0)), lambda run: run.best().number),
        *(lambda run: len(run.carried(-1)), lambda run: len(run.diff(0, -1))),
    ),
    "tensors": (
        *(lambda run: len(run.round(-1).params), lambda run: len(run.round(-1).tensors)),
        *(lambda run: run.round(-1).update(0).weight, lambda run: run.round(-1).match(0)),
        lambda run: [run[name].values.shape for name in run.tensors[:1]],
        lambda run: [run.round(-1).updates[name].shape for name in list(run.round(-1).updates)[:1]],
        lambda run: type(run.network()),
    ),
}
"""By name."""


def ask(path: str, name: str) -> None:
    """Ask all of a name; what is refused in one line is answered."""
    import roundweave as rw

    try:
        run = rw.open_run(path)
    except RoundweaveError as error:
        print(error)
        return
    for question in QUESTIONS[name]:
        try:
            print(question(run))
        except RoundweaveError as error:
            print(f"{type(error).__name__}: {error}")
