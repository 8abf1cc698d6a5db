"""Networks that know other things by one number, labels or columns of tables, have no mean: they are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import roundweave as rw
from roundweave.flows.config.merging.merge import GramConfig
from roundweave.flows.merging.grams import write_gram_file
from roundweave.flows.merging.preparing import MergePlan, plan_merge
from roundweave.storage.errors import CheckpointError, DataError
from roundweave.tasks.merging.gallery import Blend, score_blend
from tests import training

TABLES = {
    "one": ("a,b,animal", ["cat", "dog"]),
    "more": ("a,b,animal", ["dog", "cat"]),
    "other": ("a,b,animal", ["cat", "mouse"]),
    "turned": ("b,a,animal", ["cat", "dog"]),
    "numbers": ("a,b,animal", ["0", "1"]),
}

SETS = """
import torch

inputs, labels = torch.randn(47, 3, generator=torch.Generator().manual_seed(0)), torch.arange(47) % 4

def low(): return (inputs[:20], labels[:20]), (inputs[40:], labels[40:])

def high(): return (inputs[20:40], labels[20:40]), (inputs[40:], labels[40:])
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The file of a table as data, by its name."""
    folder = tmp_path_factory.mktemp("tables")
    for number, (name, (columns, labels)) in enumerate(TABLES.items()):
        rows = [f"{(row + number) / 7},{row % 3},{labels[row % 2]}" for row in range(60)]
        (folder / f"{name}.csv").write_text("\n".join([columns, *rows]))
    for name, text in (("letters", "abcd dcba "), ("others", "wxyz zyxw ")):
        (folder / f"{name}.txt").write_text(text * 60)
    return lambda name: f"{'csv' if name in TABLES else 'text'}:{next(folder.glob(f'{name}.*'))}"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, tables) -> Callable[..., MergePlan]:
    """Plan the merge of runs, each on the table or text of its name."""
    root = tmp_path_factory.mktemp("runs")
    of_text = {"model": "gpt", "model_options": {"width": 8, "depth": 1}}
    for name in (*TABLES, "letters", "others"):
        more = {} if name in TABLES else of_text
        training.trained(root, data=tables(name), partitions=1, rounds=1, local_steps=1, name=name, **more)

    def planned(*names: str, **fields: object) -> MergePlan:
        networks = tuple(name if "." in name else f"{name}@-1" for name in names)
        return plan_merge(
            rw.MergeConfig(networks=networks, root=str(root), out=f"{root}/out.safetensors", **fields)
        )

    planned.root = root  # type: ignore[attr-defined]
    return planned


@pytest.mark.parametrize(
    ("names", "message"),
    {
        "labels": (["one", "other"], "other@-1 has 'mouse' as class 1, where one@-1 has 'dog'"),
        "three": (["one", "more", "other"], "other@-1 has 'mouse' as class 1, where one@-1 has 'dog'"),
        "columns": (["one", "turned"], "turned@-1 has 'b' as column 0, where one@-1 has 'a'"),
        "numbers": (["one", "numbers"], "numbers@-1 has '0' as class 0, where one@-1 has 'cat'"),
        "characters": (["letters", "others"], "others@-1 has 'w' as class 1, where letters@-1 has 'a'"),
    }.values(),
)
@pytest.mark.parametrize("fields", [{}, {"match": "none", "input": "2x2"}], ids=["with data", "by name"])
def test_runs_of_other_labels_columns_or_characters_are_refused(plan, names, message, fields) -> None:
    with pytest.raises(DataError, match=f"^{message}; give both the same, in the same order$"):
        plan(*names, **fields)


def test_a_base_is_refused_as_a_network_is(plan) -> None:
    with pytest.raises(DataError, match="other@-1 has 'mouse' as class 1, where one@-1 has 'dog'"):
        plan("one", "more", base="other@-1", average="task_arithmetic")


def test_data_of_other_labels_or_columns_than_the_runs_are_refused(plan, tables, tmp_path) -> None:
    for name, message in (
        ("other", "the data has 'mouse' as class 1, where one@-1 has 'dog'"),
        ("turned", "the data has 'b' as column 0, where one@-1 has 'a'"),
    ):
        with pytest.raises(DataError, match=message):
            plan("one", "more", data=tables(name))
        with pytest.raises(DataError, match=message):
            write_gram_file(
                GramConfig(
                    network="one@-1", data=tables(name), root=str(plan.root), out=f"{tmp_path}/g.safetensors"
                )
            )


def test_files_say_no_names_and_their_data_do(plan, tables) -> None:
    files = [f"{plan.root}/{name}.safetensors" for name in ("one", "more")]
    for file in files:
        rw.Run(f"{plan.root}/one.zarr").round(-1).save(file)
    with pytest.raises(DataError, match="data set 1 has 'b' as column 0, where data set 0 has 'a'"):
        plan(*files, model="mlp", data=f"{tables('one')},{tables('turned')}")
    with pytest.raises(CheckpointError, match=r"shape \(2,\), but float of shape \(3,\) in the network"):
        plan(*files, model="mlp", data=f"{tables('one')},{tables('other')}")  # of three labels in all
    assert plan(*files, model="mlp", data=f"{tables('one')},{tables('more')}").gallery is not None


def test_examples_that_two_data_sets_both_hold_out_count_once(plan, tmp_path) -> None:
    (tmp_path / "sets.py").write_text(SETS)
    for name in ("low", "high"):
        training.trained(
            plan.root, data=f"{tmp_path}/sets.py:{name}", partitions=1, rounds=1, local_steps=1, name=name
        )
    gallery = plan("low", "high").gallery
    assert gallery is not None
    score = score_blend(gallery, [Blend(("low@-1",), (1.0,))], 0)
    assert score is not None
    assert score.examples == 7
