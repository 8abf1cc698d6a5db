"""A run's numbers as trackers of experiments have them, read back by the trackers' own means."""

from __future__ import annotations

import sys

import pytest

from roundweave.flows.plugins.exports import trackers
from roundweave.storage.errors import UsageError
from tests.flows.prefect_server import until

NUMBERS = {1: {"loss": 0.5, "recall@5": 0.25}, 2: {"loss": 0.25, "recall@5": 0.75}}
STORY = trackers.Story(
    "first",
    {"lr": 0.1, "model": "mlp", "nesterov": False, "own": "x" * 7000},
    {"chain": "c" * 64},
    tuple(trackers.Moment(round, 1000.0 + round, numbers) for round, numbers in NUMBERS.items()),
)


def test_a_story_has_the_numbers_of_each_round_and_when_it_was_committed(stored) -> None:
    run = stored("adam")
    story = trackers.story_of(run)
    assert (story.name, story.config["local_steps"]) == ("adam", 2)
    assert story.facts["chain"] == run.chain
    history = run.history()
    assert [moment.round for moment in story.moments] == [0, 1, 2, 3]
    assert "loss" not in story.moments[1].numbers
    for moment in story.moments[1:]:
        assert moment.time == run.round(moment.round).commit.time
        assert moment.numbers == history.loc[moment.round].dropna().to_dict()


def test_a_round_whose_record_is_damaged_is_left_out_of_the_story(stored) -> None:
    run = stored("plain")
    (run.path / "commits/2.json").write_text("{}")
    assert run.refresh().lost == [2]
    assert [moment.round for moment in trackers.story_of(run).moments] == [0, 1, 3]


def test_tensorboard_has_a_scalar_a_number_and_the_hyperparameters_and_again_none_twice(tmp_path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for _ in range(2):
        said = trackers.to_tensorboard(STORY, str(tmp_path))
    assert said.startswith(str(tmp_path / "first"))
    events = accumulator.EventAccumulator(str(tmp_path / "first")).Reload()
    for name in ("loss", "recall@5"):
        told = [(event.step, event.wall_time, event.value) for event in events.Scalars(name)]
        assert told == [(round, 1000.0 + round, NUMBERS[round][name]) for round in NUMBERS]
    assert "lr" in str(events.SummaryMetadata("_hparams_/session_start_info"))


@pytest.mark.thorough  # a run that is exported to it is in the first suite
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's, of its own database
def test_mlflow_has_parameters_tags_and_a_metric_a_number(tmp_path, capsys) -> None:
    mlflow = pytest.importorskip("mlflow")
    where = f"sqlite:///{tmp_path}/mlflow.db"
    trackers.to_mlflow(STORY, where)
    assert "INFO" not in capsys.readouterr().err
    client = mlflow.MlflowClient(where)
    (experiment,) = [e for e in client.search_experiments() if e.name == "roundweave"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "lr": "0.1",
        "model": "mlp",
        "nesterov": "False",
        "own": "x" * trackers.LONGEST_PARAMETER,
    }
    assert run.data.tags["chain"] == "c" * 64
    for name in ("loss", "recall@5"):
        history = client.get_metric_history(run.info.run_id, name.replace("@", " at "))
        told = sorted((metric.step, metric.timestamp, metric.value) for metric in history)
        assert told == [(round, 1000 * (1000 + round), NUMBERS[round][name]) for round in NUMBERS]


@pytest.mark.thorough
def test_wandb_has_a_row_a_round_without_an_account(tmp_path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged, log = [], wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, row, step: logged.append((step, row)) or log(run, row, step))
    assert "wandb sync" in trackers.to_wandb(STORY, str(tmp_path))
    assert logged == [(round, numbers | {"_timestamp": 1000.0 + round}) for round, numbers in NUMBERS.items()]
    (file,) = tmp_path.rglob("*.wandb")
    until(lambda: b"recall@5" in file.read_bytes())  # wandb's own process writes them


def test_wandb_without_an_account_says_what_to_do(tmp_path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(type(wandb.api), "api_key", None)
    with pytest.raises(UsageError, match=r"wandb login.*WANDB_MODE=offline"):
        trackers.to_wandb(STORY, str(tmp_path))


@pytest.mark.parametrize(
    ("tracker", "module"),
    [(trackers.to_tensorboard, "tensorboard"), (trackers.to_mlflow, "mlflow"), (trackers.to_wandb, "wandb")],
)
def test_a_tracker_that_is_not_installed_is_one_clear_line(monkeypatch, tmp_path, tracker, module) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == module or "utils.tensorboard" in each]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"is not installed; `pip install"):
        tracker(STORY, str(tmp_path))
