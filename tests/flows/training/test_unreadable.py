"""One of several partitions that cannot be read: its maps are refused, the others train, and nothing is hidden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roundweave.flows.stored import Run
from roundweave.storage.errors import DataError, ExperimentDiffers, FileMissing
from tests.training import trained

DATA = """
from pathlib import Path
import roundweave
import torch

HERE = Path({here!r})

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(40, 3, generator=generator)
    state = (HERE / "state").read_text() if partition == int((HERE / "number").read_text()) else "sound"
    if state == "raises":
        raise ValueError("rubbish")
    if state == "empty":
        inputs = inputs[:0]
    if state == "not finite":
        inputs = inputs / 0
    return inputs, torch.arange(len(inputs)) % 2

def careful(input):
    if roundweave.partition().number == 2:
        raise ValueError("rubbish")
    return input

def shared(partition, partitions):
    held_out = torch.ones(30, 3), torch.arange(30) % 2
    return data(partition, partitions), held_out
"""


@pytest.fixture
def run(tmp_path: Path):
    """Train on four partitions of which one is not sound."""
    (tmp_path / "mine.py").write_text(DATA.format(here=str(tmp_path)))

    def go(state: str, number: int = 2, data: str = "data", **fields: object) -> Run:
        (tmp_path / "state").write_text(state)
        (tmp_path / "number").write_text(str(number))
        small = {"model": "logistic", "partitions": 4, "rounds": 2, "local_steps": 2, "batch_size": 9}
        return trained(tmp_path / "runs", **small | {"data": f"{tmp_path}/mine.py:{data}"} | fields)

    return go


@pytest.mark.parametrize(
    ("algorithm", "number"),
    [("fed_avg", 0), pytest.param("scaffold", 2, marks=pytest.mark.thorough), ("d_psgd", 2)],
)
def test_a_partition_that_cannot_be_read_is_refused_as_one_with_an_unsound_update(run, algorithm, number) -> None:
    """So the others' bits are those of a run in which its update is not finite."""
    unsound = run("not finite", number, algorithm=algorithm, name="unsound")
    for state, says in (("raises", "ValueError: rubbish"), ("empty", "at least one")):
        unread = run(state, number, algorithm=algorithm, name=f"unread-{state}")
        assert unread.digest == unsound.digest
        assert [[*unread.round(r).refused] for r in (1, 2)] == [[number]] * 2
        assert says in unread.round(1).refused[number]
        assert [unread.round(r).score.examples for r in range(3)] == [12, 12, 12]  # 4 of each that can be read
        assert unread.replay("all").identical
        assert unread.verify().sound


def test_a_partition_whose_examples_cannot_be_prepared_is_refused_too(run, tmp_path: Path) -> None:
    unread = run("sound", transform=f"{tmp_path}/mine.py:careful", name="careless")
    assert [[*unread.round(r).refused] for r in (1, 2)] == [[2]] * 2
    assert "rubbish" in unread.round(1).refused[2]
    assert unread.replay("all").identical


@pytest.mark.parametrize("cohort", [None, 2])
def test_held_out_examples_that_all_have_are_scored_without_it(run, cohort) -> None:
    unread = run("raises", 0, "shared", cohort=cohort)
    assert [unread.round(r).score.examples for r in range(3)] == [30, 30, 30]


def test_too_few_that_can_be_read_are_refused_before_a_round_by_number(run) -> None:
    says = r"partition 2: .*mine.py:data\(2, 4\) failed with ValueError: rubbish .*; quorum needs 4 readable"
    with pytest.raises(DataError, match=says):
        run("raises", quorum=4, name="four")
    with pytest.raises(DataError, match=r"partition 0: .*quorum needs 1 readable"):
        run("raises", 0, partitions=1, name="alone")


def test_what_can_be_read_again_is_other_data(run) -> None:
    whole = run("raises", name="night")
    assert run("raises", name="night", rounds=3).done == 3
    assert run("sound", name="other").round(1).refused == {}
    assert "other examples" in str(whole.replay(1))
    with pytest.raises(ExperimentDiffers, match="other examples"):
        run("sound", name="night", rounds=4)


@pytest.mark.parametrize(
    ("content", "says"),
    [("a,y\n1,0\nx,1\n", "column 'a' holds str"), ("a,y\n", "has 0 rows"), ("", "cannot be read as csv")],
)
def test_one_bad_file_of_several_is_refused_and_a_missing_one_is_bad_usage(tmp_path, content, says) -> None:
    for number in range(4):
        (tmp_path / f"{number}.csv").write_text("a,y\n" + "".join(f"{row / 40},{row % 2}\n" for row in range(40)))
    (tmp_path / "3.csv").write_text(content)
    files = [f"csv:{tmp_path}/{number}.csv" for number in range(4)]
    small = {"model": "logistic", "partitions": 4, "rounds": 1, "local_steps": 2, "batch_size": 9}
    unread = trained(tmp_path / "runs", **small, data=files, name="files")
    assert [*unread.round(1).refused] == [3]
    assert says in unread.round(1).refused[3]
    (tmp_path / "3.csv").unlink()
    with pytest.raises(FileMissing, match=re.escape("3.csv")):
        trained(tmp_path / "runs", **small, data=files, name="missing")
