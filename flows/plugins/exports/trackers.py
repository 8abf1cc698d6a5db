"""Experiment trackers by name. Each takes a whole run, and needs a library that is not installed by default."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from roundweave.flows.plugins.exports import not_installed
from roundweave.storage.errors import PlaceError, UsageError, failing_as, one_line
from roundweave.storage.parsing import mistakes_as
from roundweave.storage.runs.listing import flat_config
from roundweave.storage.runs.run import StoredRun


@dataclass(frozen=True)
class Moment:
    """A round's numbers by name, and the time of its commit in seconds since the epoch."""

    round: int
    time: float
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Story:
    """A run for a tracker: its name, its flat configuration, facts such as its status and digest, its rounds.

    `folder` has its model for a tracker that keeps models, which is given the `alias`; `chain` is its round's.
    """

    name: str
    config: Mapping[str, Any]
    facts: Mapping[str, str]
    moments: tuple[Moment, ...]
    folder: Path | None = None
    alias: str | None = None
    chain: str = ""


def story_of(run: StoredRun) -> Story:
    """The story of a run up to its last committed round. Numbers that are missing or not finite are left out."""
    config = {name: value for name, value in flat_config(run.config).items() if value is not None}
    algorithm = run.attributes["algorithm"]
    facts = {"status": run.status, "state": run.digest, "chain": run.chain, "algorithm": algorithm}
    facts |= {"data": run.attributes["data"]["digest"], "parent": run.parent or ""}
    history = run.history().to_dict("index")  # it may have numbers of a round whose record is damaged
    moments = (
        Moment(
            round,
            run.round(round).commit.time or run.created,
            {str(name): float(value) for name, value in history[round].items() if math.isfinite(value)},
        )
        for round in run.committed
        if round in history
    )
    return Story(run.name, config, facts, tuple(moments))


Tracker = Callable[[Story, str | None], str]
"""Exports a story to a folder or address, by default the tracker's own; returns a text that says where it is."""

EXPERIMENT = "roundweave"
"""The name of the trackers' experiment or project that runs are exported to, and of MLflow's registered model."""

MLFLOW_BATCH = {"metrics": 1000, "params": 100}
"""The most metrics and parameters that MLflow takes in one request."""

LONGEST_PARAMETER = 6000
"""The most characters that MLflow takes for a parameter's value."""

OURS = ".roundweave"
"""The suffix of event files that we write, by which an earlier export is found and replaced."""


def to_tensorboard(story: Story, where: str | None) -> str:
    """Write TensorBoard event files: each number as a scalar, the configuration as text and hyperparameters."""
    summary = installed("torch.utils.tensorboard.summary", "tensorboard")
    writer_of = installed("torch.utils.tensorboard", "tensorboard").SummaryWriter
    folder = Path(where or "tensorboard", story.name)
    for former in folder.glob(f"events.out.tfevents.*{OURS}"):
        former.unlink()
    with writer_of(str(folder), filename_suffix=OURS) as writer:
        facts = {**story.config, **story.facts}.items()
        rows = (f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in facts)
        writer.add_text("config", "\n".join(["| field | value |", "| --- | --- |", *rows]))
        plain = {n: v if isinstance(v, bool | int | float | str) else str(v) for n, v in story.config.items()}
        for part in summary.hparams(plain, dict.fromkeys(story.moments[-1].numbers)):
            writer.file_writer.add_summary(part)
        for moment in story.moments:
            for name, number in moment.numbers.items():
                writer.add_scalar(name, number, moment.round, moment.time)
    return f"{folder}; look with `tensorboard --logdir {folder.parent}`"


def to_mlflow(story: Story, where: str | None) -> str:
    """Create an MLflow run with parameters, tags and metrics, and a version of its model if the story has one.

    `where` is a tracking URI, default: MLflow's own.
    """
    mlflow, entities = installed("mlflow", "mlflow-skinny"), installed("mlflow.entities", "mlflow-skinny")
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs the tables of each new database
    client = mlflow.MlflowClient(where)
    if story.alias and (version := _version(client, story.chain)):
        client.set_registered_model_alias(EXPERIMENT, story.alias, version)
        return f"version {version} of the model {EXPERIMENT} at {client.tracking_uri}"
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = (
        experiment.experiment_id
        if experiment
        else client.create_experiment(EXPERIMENT, _artifacts(client.tracking_uri))
    )
    first, last = story.moments[0].time, story.moments[-1].time
    made = client.create_run(number, int(first * 1000), {**story.facts}, story.name).info.run_id
    metrics = [
        entities.Metric(name.replace("@", " at "), value, int(moment.time * 1000), moment.round)
        for moment in story.moments
        for name, value in moment.numbers.items()
    ]
    params = [entities.Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in story.config.items()]
    for kind, parts in {"metrics": metrics, "params": params}.items():
        for start in range(0, len(parts), MLFLOW_BATCH[kind]):
            client.log_batch(made, **{kind: parts[start : start + MLFLOW_BATCH[kind]]})
    if story.folder:
        _register(client, made, story)
    client.set_terminated(made, "FINISHED", int(last * 1000))
    return f"run {made} of the experiment {EXPERIMENT} at {client.tracking_uri}"


def _artifacts(tracking: str) -> str | None:
    """Where models lie: beside a database in a file; MLflow's default is the folder of a process, which may go."""
    file = tracking.removeprefix("sqlite:///")
    return None if file == tracking else str(Path(file).absolute().with_name("mlruns"))


def _register(client: Any, made: str, story: Story) -> None:
    """Have an MLflow run keep the story's folder as artifacts, and the registry as a version with the alias."""
    client.log_artifacts(made, str(story.folder), "model")
    if not client.search_registered_models(f"name = '{EXPERIMENT}'"):
        client.create_registered_model(EXPERIMENT)
    source = f"{client.get_run(made).info.artifact_uri}/model"
    version = client.create_model_version(EXPERIMENT, source, made, {"chain": story.chain}).version
    if story.alias:
        client.set_registered_model_alias(EXPERIMENT, story.alias, version)


def _version(client: Any, chain: str) -> str | None:
    """The version of the registered model that was made of the round with this chain; None if there is none."""
    known = client.search_registered_models(f"name = '{EXPERIMENT}'")
    versions = client.search_model_versions(f"name = '{EXPERIMENT}'") if known else []
    return next((each.version for each in versions if each.tags.get("chain") == chain), None)


def unregister(alias: str) -> None:
    """Take an alias back from MLflow's registry; raises `PlaceError` where MLflow fails."""
    mlflow = installed("mlflow", "mlflow-skinny")
    with failing_as(lambda error: PlaceError(f"mlflow keeps the alias {alias}: {one_line(error)}")):
        mlflow.MlflowClient().delete_registered_model_alias(EXPERIMENT, alias)


def to_wandb(story: Story, where: str | None) -> str:
    """Create a Weights & Biases run with the configuration and a history row a round; `where` is a folder."""
    wandb = installed("wandb", "wandb")
    if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.api.api_key:
        raise UsageError("Weights & Biases knows no account here; `wandb login`, or set WANDB_MODE=offline")
    folder = Path(where or ".")
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
    with wandb.init(
        project=EXPERIMENT, name=story.name, config={**story.config}, dir=folder, settings=settings
    ) as run:
        run.summary.update(story.facts)
        for moment in story.moments:
            run.log({**moment.numbers, "_timestamp": moment.time}, step=moment.round)
        return f"{Path(run.dir).parent}; send it with `wandb sync`" if run.offline else str(run.url)


TRACKERS: dict[str, Tracker] = {"tensorboard": to_tensorboard, "mlflow": to_mlflow, "wandb": to_wandb}
"""The functions that export a run, by the tracker's name."""


def tracked(run: StoredRun, tracker: str, out: str | None = None, **model: Any) -> str:
    """Export a run to a tracker, with the fields of its story's `model`, and return where it is.

    Raises `PlaceError` where the tracker fails.
    """
    with failing_as(lambda e: PlaceError(f"{tracker} takes nothing at {out or 'its default'}: {one_line(e)}")):
        return TRACKERS[tracker](replace(story_of(run), **model), out)


def installed(module: str, package: str) -> Any:
    """Import a module of an optional package; raises `UsageError` if the package is not installed."""
    with mistakes_as(lambda error: not_installed(package), ImportError):
        return import_module(module)
