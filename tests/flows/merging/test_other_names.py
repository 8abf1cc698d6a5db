"""Networks that know or compute other things are refused, not averaged unseen; or labels are put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import roundweave as rw
from roundweave.flows.config.merging.merge import GramConfig
from roundweave.flows.merging.grams import write_gram_file
from roundweave.flows.merging.preparing import MergePlan, plan_merge
from roundweave.flows.merging.result import MergeResult
from roundweave.storage.errors import CheckpointError, DataError, ModelError, UsageError
from roundweave.storage.runs.opening import open_checkpoint
from roundweave.tasks.merging.gallery import Blend, score_blend
from tests import training
from tests.flows.command.in_process import said
from tests.rows import second
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging import mine

SHORT = {"partitions": 1, "rounds": 1, "local_steps": 1}
TABLES = {
    "one": ("a,b,animal", ["cat", "dog"]),
    "more": ("a,b,animal", ["dog", "cat"]),
    "other": ("a,b,animal", ["cat", "mouse"]),
    "three": ("a,b,animal", ["cat", "dog", "mouse"]),
    "turned": ("b,a,animal", ["cat", "dog"]),
    "from_one": ("a,b,animal", ["1", "2"]),
    "texts": ("a,b,animal", ["1", "2", "x"]),
    "inputs": ("inputs_a,b,animal", ["cat", "dog"]),
    "turned_inputs": ("b,inputs_a,animal", ["cat", "dog"]),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The file of a table as data, by its name."""
    folder = tmp_path_factory.mktemp("tables")
    for number, (name, (columns, labels)) in enumerate(TABLES.items()):
        rows = [f"{(row + number) / 7},{row % 3},{labels[row % len(labels)]}" for row in range(60)]
        (folder / f"{name}.csv").write_text("\n".join([columns, *rows]))
    for name, text in (("letters", "abcd dcba "), ("others", "wxyz zyxw ")):
        (folder / f"{name}.txt").write_text(text * 60)
    return lambda name: f"{'csv' if name in TABLES else 'text'}:{next(folder.glob(f'{name}.*'))}"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, tables) -> Callable[..., MergePlan]:
    """Plan the merge of runs, each on the table or text of its name."""
    root = tmp_path_factory.mktemp("runs")

    @cache
    def train(name: str) -> None:
        more = {} if name in TABLES else {"model": "gpt", "model_options": {"width": 8, "depth": 1}}
        training.trained(root, data=tables(name), name=name, **SHORT, **more)

    def planned(*names: str, **fields: object) -> MergePlan:
        for name in {*names, str(fields.get("base", "")).removesuffix("@-1")} & {*TABLES, "letters", "others"}:
            train(name)
        networks = tuple(name if "." in name else f"{name}@-1" for name in names)
        given = {"networks": networks, "root": str(root), "out": f"{root}/out.safetensors"}
        return plan_merge(rw.MergeConfig(**given, **fields))

    planned.root = root  # type: ignore[attr-defined]
    return planned


@pytest.mark.parametrize(
    ("names", "message"),
    {
        "labels": (["one", "other"], "other@-1 has 'mouse' as class 1, where one@-1 has 'dog'"),
        "three": (["one", "more", "other"], "other@-1 has 'mouse' as class 1, where one@-1 has 'dog'"),
        "columns": (["one", "turned"], "turned@-1 has 'b' as column 0, where one@-1 has 'a'"),
        "numbers from 1": (["texts", "from_one"], "from_one@-1 has '0' as class 0, where texts@-1 has '1'"),
        "inputs": (
            ["inputs", "turned_inputs"],
            "turned_inputs@-1 has 'b' as column 0, where inputs@-1 has 'inputs_a'",
        ),
        "characters": (["letters", "others"], "others@-1 has 'w' as class 1, where letters@-1 has 'a'"),
    }.values(),
)
@pytest.mark.parametrize("fields", [{}, *second({"match": "none", "input": "2x2"})], ids=["data", "name"])
def test_runs_of_other_labels_columns_or_characters_are_refused(plan, names, message, fields) -> None:
    with pytest.raises(DataError, match=f"^{message}; give both the same, in the same order$"):
        plan(*names, **fields)


def test_a_run_of_the_first_labels_of_another_is_refused_with_the_way_out(plan) -> None:
    with pytest.raises(UsageError, match=r"^one@-1 knows 2 labels of 3; give --labels union$"):
        plan("three", "one")
    assert plan("three", "one", labels="union").states[1]["fc2.bias"].shape == (3,)


def test_a_merge_that_is_kept_knows_the_labels_of_its_networks(plan) -> None:
    for name, more in (("kept", {}), ("kept_without_data", {"input": "2x2", "match": "weights"})):
        config = {"networks": ("one@-1", "more@-1"), "root": str(plan.root), "executor": "inline", "name": name}
        rw.merge(rw.MergeConfig(**config, **more))
        with pytest.raises(DataError, match=r"other@-1 has 'mouse' as class 1, where .*@-1 has 'dog'"):
            plan(name, "one", "other")


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
        given = {"network": "one@-1", "root": str(plan.root), "out": f"{tmp_path}/g.safetensors"}
        with pytest.raises(DataError, match=message):
            write_gram_file(GramConfig(data=tables(name), **given))


def test_files_say_no_names_and_their_data_do(plan, tables) -> None:
    files = [f"{plan.root}/{name}.safetensors" for name in ("one", "more")]
    for file in files:
        rw.Run(f"{plan.root}/one.zarr").round(-1).save(file)
    with pytest.raises(DataError, match="data set 1 has 'b' as column 0, where data set 0 has 'a'"):
        plan(*files, model="mlp", data=f"{tables('one')},{tables('turned')}")
    with pytest.raises(CheckpointError, match=r"shape \(2,\), but float of shape \(3,\) in the network"):
        plan(*files, model="mlp", data=f"{tables('one')},{tables('other')}")  # of three labels in all
    assert plan(*files, model="mlp", data=f"{tables('one')},{tables('more')}").gallery is not None


@pytest.mark.parametrize("match", ["weights", *second("none")])
def test_without_data_there_are_as_many_outputs_as_the_networks_have(plan, match) -> None:
    """Of a table of two labels two, of a text as many as it has characters; of runs and of files."""
    for name, given, outputs in (("one", "2x2", 2), ("letters", "int64:2x64", 5)):
        assert plan(name, name, input=given, match=match).model.outputs == outputs
    file = f"{plan.root}/outputs.safetensors"
    rw.Run(f"{plan.root}/one.zarr").round(-1).save(file)
    assert plan(file, file, model="mlp", input="2x2", match=match).model.outputs == 2
    with pytest.raises(CheckpointError, match="lacks"):
        plan(file, file, model="cnn", input="2x1x8x8", match=match)


def test_examples_that_two_data_sets_both_hold_out_count_once(plan) -> None:
    for name in ("low", "high"):
        training.trained(plan.root, data=f"{mine.__file__}:{name}", name=name, **SHORT)
    score = score_blend(plan("low", "high").gallery, [Blend(("low@-1",), (1.0,))], 0)
    assert score.examples == len(mine.low()[1][0])


# A union of their labels.

ANIMALS = {"cats": ["cat", "dog"], "mice": ["mouse", "cat"]}
PLACES = {"cat": (0, 0), "dog": (4, 0), "mouse": (0, 4)}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two runs, on tables of two animals each, of which one is in both."""
    folder = tmp_path_factory.mktemp("apart")
    generator = torch.Generator().manual_seed(0)
    for seed, (name, animals) in enumerate(ANIMALS.items()):
        lines = ["a,b,animal"]
        for row in range(200):
            noise = torch.randn(2, generator=generator).tolist()
            a, b = (at + 0.3 * more for at, more in zip(PLACES[animals[row % 2]], noise, strict=True))
            lines.append(f"{a},{b},{animals[row % 2]}")
        (folder / f"{name}.csv").write_text("\n".join(lines))
        fields = {"partitions": 1, "rounds": 2, "local_epochs": 10, "lr": 0.1, "seed": seed}
        training.trained(folder, data=f"csv:{folder}/{name}.csv", name=name, **fields)
    return folder


def merged(apart: Path, out: Path, **fields: object) -> tuple[MergeResult, dict[str, torch.Tensor]]:
    config = {"executor": "inline", "labels": "union", "root": str(apart), "out": str(out), "force": True}
    config["networks"] = tuple(f"{name}@-1" for name in ANIMALS)
    return rw.merge(rw.MergeConfig(**config | fields)), read_checkpoint(str(out))


def test_a_row_of_a_label_that_one_run_has_is_its_own(apart, tmp_path) -> None:
    fields = {"match": "none", "average": "mean", "coefficients": (1, 3)}
    _, state = merged(apart, tmp_path / "out.safetensors", **fields)
    one, other = (open_checkpoint(f"{name}@-1", str(apart)) for name in ANIMALS)
    for name in ("fc2.weight", "fc2.bias"):  # cat, dog and mouse; the other network has cat and mouse
        rows = [(one[name][0] + 3 * other[name][0]) / 4, one[name][1], other[name][1]]
        torch.testing.assert_close(state[name], torch.stack(rows))
    torch.testing.assert_close(state["fc1.weight"], (one["fc1.weight"] + 3 * other["fc1.weight"]) / 4)


@pytest.mark.parametrize("average", ["mean", *second("pleas", "regmean")])
def test_the_union_tells_apart_what_neither_network_could(apart, tmp_path, average) -> None:
    """What is written is what was scored: on the held-out examples of both, with all three labels."""
    result, state = merged(apart, tmp_path / "out.safetensors", average=average)
    score = result.scores[result.chosen]
    assert score.examples == 40
    assert score.accuracy == 1.0
    assert all(result.scores[f"parent {name}@-1"].accuracy < 0.9 for name in ANIMALS)
    inputs = torch.tensor([PLACES[name] for name in ("cat", "dog", "mouse")], dtype=torch.float32)
    hidden = functional.linear(inputs, state["fc1.weight"], state["fc1.bias"]).relu()
    logits = functional.linear(hidden, state["fc2.weight"], state["fc2.bias"])
    assert logits.argmax(1).tolist() == [0, 1, 2]


def test_a_union_by_the_command_is_a_run_that_knows_its_labels(apart, tmp_path, capsys) -> None:
    words = [*(f"{name}@-1" for name in ANIMALS), "--labels", "union", "--name", "all", "--root", str(apart)]
    said(capsys, "merge", *words, "--executor", "inline")
    assert rw.Run(f"{apart}/all.zarr").attributes["data"]["class_names"] == ["cat", "dog", "mouse"]
    with pytest.raises(DataError, match="mice@-1 has 'mouse' as class 1, where all@-1 has 'dog'"):
        plan_merge(rw.MergeConfig(networks=("mice@-1", "cats@-1", "all@-1"), root=str(apart)))


def test_what_no_union_can_be_made_of_is_refused(apart, tmp_path) -> None:
    (tmp_path / "own.py").write_text("import torch\ndef net(): return torch.nn.Linear(2, 3)\n")
    (apart / "cows.csv").write_text("a,b,animal\n" + "1,2,cat\n2,1,dog\n3,1,cow\n1,1,mouse\n" * 10)
    rw.Run(f"{apart}/cats.zarr").round(-1).save(f"{tmp_path}/a.safetensors")
    for fields, message in (
        ({"labels": "first"}, "labels = union for runs"),
        ({"networks": ("cats@-1", f"{tmp_path}/a.safetensors")}, "labels = union for runs"),
        ({"input": "2x2", "match": "none"}, "labels of runs needs examples; give --data"),
        ({"distil": 5}, "leave distil out"),
        ({"average": "slerp"}, "leave average = slerp out"),
        ({"average": "fisher"}, "leave average = fisher out"),
        ({"average": "mean", "coefficients": (1, -2)}, "leave layers and coefficients out"),
        ({"data": f"csv:{apart}/cows.csv"}, "the data has label 'cow', which none of the networks knows"),
        ({"data": f"csv:{apart}/cats.csv"}, "mice@-1 has label 'mouse', which no data set names"),
        ({"model": f"{tmp_path}/own.py:net"}, "has as many outputs for any labels"),
    ):
        with pytest.raises((ModelError, UsageError), match=message):
            merged(apart, tmp_path / "out.safetensors", **fields)


MINE = """
import torch
from torch import nn

def data(day=1):
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(day))
    return inputs, (inputs[:, 0] > 0).long()

class Masked(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).masked_fill(torch.arange(3) == 2, -torch.inf)

def masked(): return Masked(4, 3)

def net(act="ReLU", dropout=0.0):
    head = nn.Linear(8, 2)
    nn.init.zeros_(head.weight)  # by which no difference of what comes before would show
    return nn.Sequential(nn.Linear(4, 8), getattr(nn, act)(), nn.Dropout(dropout), head)

def plain(inputs): return inputs

def tenfold(inputs): return 10 * inputs
"""
RUNS: dict[str, dict[str, object]] = {
    "first": {},
    "tanh": {"model_options": {"act": "Tanh"}},
    "dropped": {"model_options": {"dropout": 0.5}},
    "tenfold": {"transform": "tenfold", "held_out_transform": "tenfold"},
    "relu6": {"model_options": {"act": "ReLU6"}},
    "masked": {"model": "masked"},
    "later": {"data_options": {"day": 2}},
    "latest": {"data_options": {"day": 3}},
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., MergePlan]:
    """Plan the merge of runs by their names; functions are of one file, or of its copy where it was edited."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "mine.py").write_text(MINE)
    (folder / "edited.py").write_text(f"# an edit that changes nothing\n{MINE}".replace("head", "last"))

    def fields(file: Path, given: dict[str, object]) -> dict[str, object]:
        functions = ("data", "model", "transform", "held_out_transform")
        return {name: f"{file}:{text}" if name in functions else text for name, text in given.items()}

    basic = {"data": "data", "model": "net", "partitions": 1, "rounds": 1, "local_steps": 1}
    for name, more in (RUNS | {"edited": {}, "edited_mask": {"model": "masked"}}).items():
        file = folder / ("edited.py" if name.startswith("edited") else "mine.py")
        training.trained(folder, **fields(file, basic | more), name=name)

    def of(*names: str, **given: object) -> MergePlan:
        config = {"networks": tuple(f"{name}@-1" for name in names), "root": str(folder), "executor": "inline"}
        return plan_merge(rw.MergeConfig(**config, **fields(folder / "mine.py", given)))

    return of


@pytest.mark.parametrize("fields", [{}, {"match": "none", "input": "2x4", "out": "out.safetensors"}])
def test_models_that_compute_something_else_with_the_same_weights_are_refused(planned, fields) -> None:
    with pytest.raises(
        ModelError, match=r"\{\} and .*net \{.act.: .Tanh.\} of these runs are other networks; give"
    ):
        planned("first", "first", "tanh", **fields)
    assert planned("first", "tanh", model="net", model_options={"act": "Tanh"}).model.options == '{"act": "Tanh"}'


def test_large_numbers_and_the_base_are_looked_at_too(planned) -> None:
    for names, more in ((["first", "relu6"], {}), (["first", "first"], {"base": "tanh@-1", "average": "ties"})):
        with pytest.raises(ModelError, match="of these runs are other networks"):
            planned(*names, **more)


@pytest.mark.parametrize("pair", [("first", "dropped"), ("first", "edited"), ("masked", "edited_mask")])
def test_models_that_compute_the_same_are_merged(planned, pair) -> None:
    """Though their text or their options are others."""
    assert planned(*pair).function_error < 1e-10


def test_examples_that_are_prepared_in_another_way_are_refused(planned) -> None:
    with pytest.raises(
        UsageError, match="run tenfold has another held_out_transform than run first; give the one by"
    ):
        planned("first", "tenfold")
    planned("first", "tenfold", transform="plain", held_out_transform="plain")
    assert planned("tenfold", "tenfold").config.transform.name == "tenfold"


def test_options_of_the_data_are_those_of_the_runs(planned) -> None:
    pairs = (("later", "later"), {}), (("first", "first"), {}), (("later", "latest"), {"data_options": {"day": 3}})
    plans = [planned(*names, **given) for names, given in pairs]
    first = [each.gallery.partitions.load(0, 0).inputs for each in plans]
    assert [each.config.data_options for each in plans] == [{"day": 2}, {}, {"day": 3}]
    assert not any((first[0] == each).all() for each in first[1:])
    with pytest.raises(UsageError, match=r"run latest has another data_options than run later.* --data-options"):
        planned("later", "latest")
    own = [samples.partitions.load(0, 0).inputs for samples in plans[-1].own]
    assert not (own[0] == own[1]).all()  # each network's own are those of its day
    planned("later", "latest", data="data")  # the user names data, which have options of their own
