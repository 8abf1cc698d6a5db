"""What the record of a stored run allows: going on with it, running its code, and being the same experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.config.train import Experiment, TrainConfig
from storage.errors import UsageError
from storage.runs.names import default_root
from storage.runs.run import Run, open_run
from tasks.data.sources.table import SOURCES
from tasks.networks.start import Start
from tasks.user_code import Code, is_reference


def resumed_config(run: str, root: Path | None, trust: bool, changes: dict[str, Any]) -> TrainConfig:
    """The configuration kept in a run's store, with changes to its execution; `UsageError` for foreign code."""
    stored = open_run(run, root)
    if stored.algorithm == "merge":
        raise UsageError(f"{stored.name} is a merge, which has nothing to go on with; merge again instead")
    check_trust(stored, root, trust)
    if changes.get("rounds", stored.done) < stored.done:
        raise UsageError(f"{stored.name} has {stored.done} rounds already; give --rounds a larger number")
    fixed = {"root": stored.path.resolve().parent, "name": stored.name, "rounds": stored.rounds}
    return TrainConfig(**stored.config | fixed | changes)


def check_trust(run: Run, root: Path | None, trust: bool) -> None:
    """Raise `UsageError` where a run from outside the root holds code that the user does not trust."""
    path = run.path.resolve()
    own = path.parent == (root or default_root()).resolve()
    values = [run.config.get(field) for field in ("data", "model", "loss")]
    values.append((run.config.get("algorithm") or {}).get("name"))
    values += run.config["data"] if isinstance(run.config.get("data"), list) else []
    code = [reference for value in values if (reference := _code(value))]
    if code and not own and not trust:
        raise UsageError(
            f"{path} is outside {root or default_root()} and holds code ({', '.join(code)}); "
            "read it, then use --trust to run it, or --root for a root of your own"
        )


def _code(value: Any) -> str | None:
    """The reference of the user's own function, None for what is built in."""
    if isinstance(value, dict):
        return str(value["reference"])
    if isinstance(value, str) and is_reference(value) and value.partition(":")[0] not in SOURCES:
        return value
    return None


def differences(recorded: Mapping[str, Any], wanted: Experiment) -> list[str]:
    """The fields in which a recorded experiment and a wanted one differ, as ``field old -> new``."""
    old = Experiment(**{name: value for name, value in recorded.items() if name in Experiment.model_fields})
    before, after = _fields(old), _fields(wanted)
    if _identity(before["algorithm"]) == _identity(after["algorithm"]):
        before, after = before | old.algorithm.options, after | wanted.algorithm.options
    return [
        f"{name} {_shown(before.get(name))} -> {_shown(after.get(name))}"
        for name in {**before, **after}
        if _identity(before.get(name)) != _identity(after.get(name))
    ]


def _fields(experiment: Experiment) -> dict[str, Any]:
    """The fields that make it the same experiment, besides the options of its algorithm.

    The examples are compared by their digest: the folder may have moved.
    """
    fields = {name: getattr(experiment, name) for name in Experiment.model_fields if name != "data"}
    return fields | {"algorithm": experiment.algorithm.name}


def _identity(value: Any) -> Any:
    return value.digest if isinstance(value, Code | Start) else value


def _shown(value: Any) -> str:
    return f"{value.reference} ({value.digest[:8]})" if isinstance(value, Code | Start) else str(value)
