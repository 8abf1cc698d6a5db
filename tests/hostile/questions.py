"""What a notebook asks of a run; each answer is had, or is refused by an error of Roundweave's."""

from __future__ import annotations

from collections.abc import Callable

from roundweave.storage.errors import RoundweaveError


def _ask(path: str, *asked: Callable) -> None:
    """Ask each; what is refused in one line is answered."""
    import roundweave as rw

    try:
        run = rw.open_run(path)
    except RoundweaveError as error:
        print(error)
        return
    for question in asked:
        try:
            print(question(run))
        except RoundweaveError as error:
            print(f"{type(error).__name__}: {error}")


RECORDED = (
    *("name", "status", "rounds", "done", "partitions", "committed", "kept", "absent", "lost", "digest", "chain"),
    *("stop", "failure", "damaged", "scores", "created", "algorithm"),
)


def recorded(path: str) -> None:
    """What is recorded."""
    _ask(path, repr, *(lambda run, n=name: repr(getattr(run, n))[:500] for name in RECORDED))


def cards(path: str) -> None:
    """What a notebook shows, and what is printed."""
    _ask(
        path,
        str,
        lambda run: repr(run.round(-1)),
        lambda run: str(run.round(-1)),
        lambda run: repr(run.round(-1).score)[:500],
        lambda run: repr(run.round(-1).refused)[:500],
    )


def numbers(path: str) -> None:
    """Numbers, tables and trees."""
    _ask(
        path,
        lambda run: len(run.history()),
        lambda run: len(run.arrivals()),
        lambda run: len(run.ds),
        lambda run: len(run.tree.children),
        lambda run: len(run.divergence()),
        lambda run: len(run.changes()),
        lambda run: len(run.examples(0)),
        lambda run: run.best().number,
        lambda run: len(run.carried(-1)),
        lambda run: len(run.diff(0, -1)),
    )


def tensors(path: str) -> None:
    """Tensors."""
    _ask(
        path,
        lambda run: len(run.round(-1).params),
        lambda run: len(run.round(-1).tensors),
        lambda run: run.round(-1).update(0).weight,
        lambda run: [run[name].values.shape for name in run.tensors[:1]],
        lambda run: [run.round(-1).updates[name].shape for name in list(run.round(-1).updates)[:1]],
        lambda run: type(run.network()),
        lambda run: run.round(-1).match(0),
    )


QUESTIONS: dict[str, Callable[[str], None]] = {
    "recorded": recorded,
    "cards": cards,
    "numbers": numbers,
    "tensors": tensors,
}
"""By name."""
