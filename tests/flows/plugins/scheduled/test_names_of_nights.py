"""A night has columns and labels in the order of the run that it begins with, or is refused in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

import roundweave as rw

CLASSES = ("cat", "dog", "fox")


def table() -> pd.DataFrame:
    drawn = np.random.default_rng(0)
    ages, doses = drawn.normal(4, 1, 300), drawn.normal(0, 3, 300)
    return pd.DataFrame({"age": ages, "dose": doses, "kind": np.array(CLASSES)[(ages > 4) + (doses > 1) * 1]})


WHOLE = table()
IN_ORDER = {"turned": WHOLE[["dose", "age", "kind"]], "without dogs": WHOLE[WHOLE["kind"] != "dog"]}
REFUSED = {
    "renamed": (WHOLE.rename(columns={"dose": "dosage"}), "has 'dosage' as column 1, where .* has 'dose'"),
    "a new label": (WHOLE.replace("dog", "ape"), r"float of shape \(3.*float of shape \(4"),
    "numbers": (WHOLE.replace({"kind": {"cat": 0, "dog": 1, "fox": 2}}), "labels that are numbers, .* has names"),
}


FIELDS = {"model": "logistic", "partitions": 2, "local_steps": 2, "rounds": 2}


@pytest.fixture
def begin(train, tmp_path: Path) -> Any:
    """Train a run, and then one of other rows that begins with its last round, by one of the doors."""

    def begin(door: str, rows: pd.DataFrame) -> tuple[rw.Run, dict[str, Any]]:
        data = [f"csv:{tmp_path}/{name}.csv" for name in ("first", "next")]
        for each, place in zip((WHOLE, rows), data, strict=True):
            each.to_csv(place.removeprefix("csv:"), index=False)
        parent = train(**FIELDS, data=data[0], name="first")
        fields = {**FIELDS, "data": data[1], "name": "next", "validation": data[1]}
        if door == "start_from":
            return parent, fields | {"start_from": "first@-1"}
        forked = rw.fork("first@-1", parent.path.parent, **fields)
        return parent, {name: getattr(forked, name) for name in forked.model_fields_set}

    return begin


@pytest.mark.parametrize("door", ["start_from", "fork"])
@pytest.mark.parametrize("night", IN_ORDER)
def test_what_has_the_same_names_is_put_in_order(train, begin, night: str, door: str) -> None:
    """The network that a night begins with has the loss, by names, that its parent's has on these rows."""
    rows = IN_ORDER[night]
    parent, fields = begin(door, rows)
    run = train(**fields)
    inputs = torch.tensor(rows[["age", "dose"]].to_numpy(), dtype=torch.float32)
    labels = torch.tensor([CLASSES.index(kind) for kind in rows["kind"]])
    with torch.no_grad():
        wanted = cross_entropy(parent.network()(inputs), labels).item()
    assert run.round(0).score.row()["validation_loss"] == pytest.approx(wanted, rel=1e-5)
    data = run.attributes["data"]
    assert (data["class_names"], data["input_names"]) == ([*CLASSES], ["age", "dose"])
    assert train(**fields | {"rounds": 3}).done == 3
    assert run.replay("all").identical
    assert [*run.label_counts(1)] == [*CLASSES, "size"]


@pytest.mark.parametrize("door", ["start_from", "fork"])
@pytest.mark.parametrize("night", REFUSED)
def test_what_has_other_names_is_refused(train, begin, night: str, door: str) -> None:
    rows, match = REFUSED[night]
    parent, fields = begin(door, rows)
    with pytest.raises(rw.RoundweaveError, match=match):
        train(**fields)
    assert not (parent.path.parent / "next.zarr").exists()
