"""Runs as a table, and side by side."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from roundweave import UsageError, compare, list_runs
from roundweave.flows.stored import Run
from roundweave.storage.rounds.commits import Score

CODE = {"reference": "mine.py:model", "name": "model", "source": "...", "path": "/x/mine.py", "pickled": ""}


def test_a_list_of_runs_has_their_configurations_and_last_scores(train, tmp_path) -> None:
    fields = {"model": "logistic", "partitions": 2}
    train(**fields, rounds=2, local_steps=1, lr=0.5, name="a")
    run = train(**fields, rounds=1, local_steps=3, split="dirichlet:0.5", name="b", scores="accuracy,top5")
    table = list_runs(tmp_path / "runs")
    assert table.index.tolist() == ["a", "b"]
    assert table["status"].tolist() == ["complete"] * 2
    assert table["done"].tolist() == table["rounds"].tolist() == [2, 1]
    assert table["algorithm"].tolist() == ["fed_avg"] * 2
    assert (table["lr"].tolist(), table["local_steps"].tolist()) == ([0.5, 0.1], [1, 3])
    assert table["split"].tolist() == ["iid", "dirichlet:0.5"]
    score = run.round(1).score
    assert table.loc["b", ["loss", "accuracy", "top5"]].tolist() == [score.loss, *score.values.values()]
    assert np.isnan(table.loc["a", "top5"])
    assert table["began"].is_monotonic_increasing
    assert table["error"].isna().all()
    assert "name" not in table
    shown = ["status", "done", "rounds", "algorithm", "data", "model", "loss", "accuracy"]
    assert list(table)[:8] == shown
    assert table[["data", "model"]].drop_duplicates().to_numpy().tolist() == [["digits", "logistic"]]
    assert {*list(table)[8:13]} == {"top5", "scores", "split", "lr", "local_steps"}, "what differs comes first"


def test_columns_that_two_things_have_are_told_apart(tiny) -> None:
    values = {"seed": 0.25, "status": 6.0, "error": 0.5, "done": 7.0}
    tiny.run({"score": Score(0.5, values, 8)}, seed=3)
    (row,) = list_runs().to_dict("records")
    told = [row[name] for name in ("seed", "config.seed", "status", "done", "rounds")]
    assert (told, np.isnan(row["error"])) == ([0.25, 3, "interrupted", 1, 3], True)
    assert [row[f"score.{name}"] for name in ("status", "error", "done")] == [6.0, 0.5, 7.0]


def test_runs_are_compared_by_what_differs(train) -> None:
    fields = {"model": "mlp", "partitions": 2}
    a = train(**fields, rounds=2, local_steps=1, name="a")
    b = train(**fields, rounds=1, local_steps=2, model_options={"hidden": 5}, name="b")
    compared = compare([a, b])
    assert compared.config.loc["local_steps"].tolist() == [1, 2]
    assert compared.config.loc["rounds"].tolist() == [2, 1]
    assert compared.config.loc["model_options.hidden"].isna().tolist() == [True, False]
    assert len(compared.config) == 3
    pd.testing.assert_series_equal(compared.history["loss"]["a"], a.history()["loss"], check_names=False)
    assert compared.history["accepted"]["b"].tolist()[:2] == [0, 2]
    assert np.isnan(compared.history["accepted"]["b"][2])
    assert compared.history.columns.get_level_values("run").tolist()[:2] == ["a", "b"]


def test_own_functions_differ_by_what_they_do(tiny) -> None:
    """Only definitions count: the same function of a file that was moved is the same."""

    def run(name: str, path: str, digest: str) -> Run:
        code = CODE | {"path": path, "definitions": [["model", digest]]}
        return Run(tiny.create(name, 1, model=code).path)

    a, b, c = run("a", "/x/mine.py", "0"), run("b", "/elsewhere/mine.py", "0"), run("c", "/x/mine.py", "1")
    assert compare([a, b]).config.empty
    first, second = compare([a, c]).config.loc["model"]
    assert first.startswith("mine.py:model (")
    assert first != second


def test_what_cannot_be_compared_is_refused(tiny) -> None:
    run = Run(tiny.create().path)
    for runs in ([run, run], []):
        with pytest.raises(UsageError, match="compare takes runs of different names"):
            compare(runs)
    for runs in (["tiny"], [run, None], "tiny"):
        with pytest.raises(UsageError, match=r"compare takes runs, as open_run gives them, not ('t|None)"):
            compare(runs)


def test_a_comparison_draws_a_line_for_each_run(tiny) -> None:
    compared = compare([Run(tiny.train(tiny.create(name), 2).path) for name in ("a", "b")])
    figure = Figure()
    axes = figure.subplots()
    assert compared.plot.history("accuracy", ax=axes) is axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert axes.lines[0].get_ydata().tolist() == [0.25, 0.5]
    assert compared.plot.history().get_title() == "loss of 2 runs"
    plt.close("all")
    with pytest.raises(UsageError, match=r"no run has 'acuracy'; did you mean accuracy\?"):
        compared.plot.history("acuracy")
