"""Ending a run early: at a target, or when the loss stays; and going on from there after all."""

from __future__ import annotations

import pytest

from roundweave.storage.errors import UsageError

LEARNS = {"model": "logistic", "partitions": 2, "local_epochs": 1, "rounds": 30}


def test_a_target_ends_the_run_at_the_first_round_that_reaches_it(train) -> None:
    run = train(**LEARNS, target_accuracy=0.85, name="target")
    accuracy = run.history()["accuracy"]
    assert run.done < 30
    assert accuracy.iloc[-1] >= 0.85
    assert (accuracy.iloc[:-1].dropna() < 0.85).all()
    assert run.status == "complete"
    assert "has reached the target 0.85" in run.stop


def test_patience_and_the_best_round_go_by_the_score_that_is_configured(train) -> None:
    fields = LEARNS | {"local_epochs": 5, "lr": 3.0, "patience": 2}
    run = train(**fields, best="accuracy", name="best")
    accuracy = run.history()["accuracy"].to_numpy()
    best = int(accuracy.argmax())
    assert run.done == best + 2
    assert run.stop == f"2 scores without a better accuracy than {accuracy[best]:.6g}"
    assert run.best().number == run.round("best").number == best
    with pytest.raises(UsageError, match="best has best = accuracy, not loss"):
        train(**fields, best="loss", name="best")
    by_loss = train(**fields, name="by-loss")
    loss = by_loss.history()["loss"].to_numpy()[1:]
    assert by_loss.stop == f"2 scores without a better loss than {loss.min():.6g}"
    assert by_loss.done == int(loss.argmin()) + 1 + 2


def test_a_stopped_run_goes_on_when_the_target_is_raised(train) -> None:
    first = train(**LEARNS, target_accuracy=0.5, name="raised")
    stopped = first.done
    run = train(**LEARNS, target_accuracy=0.85, name="raised")
    assert run.done > stopped
    assert run.digest == train(**LEARNS, target_accuracy=0.85, name="at-once").digest
