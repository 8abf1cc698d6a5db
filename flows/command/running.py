"""Running the training flow from Python or the command, with all that it needs around it."""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flows.config.train import TrainConfig
from flows.reporting.listening import listener
from flows.serving.server import prefect_api, start_server
from storage.errors import UsageError
from storage.rounds.commits import Commit
from storage.runs.names import default_root
from storage.runs.run import Run, open_run
from tasks.data.sources.idx import IDX_SETS
from tasks.user_code import is_reference

if TYPE_CHECKING:
    from flows.config.merge import MergeConfig
    from flows.merging.result import MergeResult


def train(config: TrainConfig) -> Run:
    """Run the `train` flow: on the user's Prefect API, or with a server whose files lie under the root."""
    from flows.serving.starting import executor_ahead
    from flows.training.preparing import checked

    config = checked(config)
    start_server(config.root)
    with executor_ahead(config), prefect_api(config.root):
        from flows.training.flow import train as flow

        run: Run = flow(config)
        return run


def merge(config: MergeConfig) -> MergeResult:
    """Run the `merge` flow, reporting like `train`."""
    from flows.serving.starting import executor_ahead

    start_server(config.root)
    with executor_ahead(config), prefect_api(config.root):
        from flows.merging.flow import merge as flow

        result: MergeResult = flow(config)
        return result


def merge_quietly(config: MergeConfig) -> MergeResult:
    """Merge without the messages of Prefect and Dask; a terminal shows that it is at work."""
    _quiet()
    with Console(stderr=True).status(f"merging {len(config.networks)} networks"):
        return merge(config)


def resumed_config(run: str, root: Path | None, trust: bool, changes: dict[str, Any]) -> TrainConfig:
    """The configuration kept in a run's store, with changes to its execution; `UsageError` for foreign code."""
    found = open_run(run, root)
    path = found.path.resolve()
    recorded = found.config
    if recorded["algorithm"] == "merge":
        raise UsageError(f"{found.name} is a merge, which has nothing to go on with; merge again instead")
    checked_trust(found, root, trust)
    if changes.get("rounds", found.done) < found.done:
        raise UsageError(f"{found.name} has {found.done} rounds already; give --rounds a larger number")
    fixed = {"root": path.parent, "name": found.name, "rounds": found.rounds}
    return TrainConfig(**recorded | fixed | changes)


def checked_trust(run: Run, root: Path | None, trust: bool) -> None:
    """Raise `UsageError` where a run from outside the root holds code that the user does not trust."""
    path = run.path.resolve()
    own = path.parent == (root or default_root()).resolve()
    code = [value for field in ("data", "model", "loss", "algorithm") if (value := _code(run.config.get(field)))]
    if code and not own and not trust:
        raise UsageError(
            f"{path} is outside {root or default_root()} and holds code ({', '.join(code)}); "
            "read it, then use --trust to run it, or --root for a root of your own"
        )


def _code(value: Any) -> str | None:
    """The reference of the user's own function, None for what is built in."""
    if isinstance(value, dict):
        return str(value["reference"])
    if isinstance(value, str) and is_reference(value) and value.partition(":")[0] not in IDX_SETS:
        return value
    return None


def train_with_bar(config: TrainConfig, began: float) -> tuple[Run, dict[str, float | None]]:
    """Train with a progress bar on the terminal; also how long it took since the command `began`."""
    _quiet()
    rounds: list[tuple[float, Commit]] = []
    with _bar(config.rounds) as shown:

        def listen(commit: Commit, total: int) -> None:
            rounds.append((time.time() - began, commit))
            shown(commit, total)

        token = listener.set(listen)
        try:
            run = train(config)
        finally:
            listener.reset(token)
    per_round = [commit.seconds for _, commit in rounds[1:]]
    return run, {
        "seconds": time.time() - began,
        "first_round_seconds": rounds[0][0] if rounds else None,
        "seconds_per_round": statistics.median(per_round) if per_round else None,
    }


def _quiet() -> None:
    # The command prints errors in one line; Prefect (told before its import) and Dask would add tracebacks.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


@contextmanager
def _bar(total: int) -> Iterator[Any]:
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
    )
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("starting", total=total, score="")

        def shown(commit: Commit, total: int) -> None:
            score = _score(commit)
            progress.update(task, completed=commit.round, total=total, description="round", score=score)
            if not console.is_terminal:
                console.print(f"round {commit.round}/{total}  {score}")

        yield shown


def _score(commit: Commit) -> str:
    if commit.score is None:
        return ""
    accuracy = commit.score.accuracy
    return f"loss {commit.score.loss:.4f}" + (f"  accuracy {accuracy:.2%}" if accuracy is not None else "")
