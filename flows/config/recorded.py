"""Configurations from the records of stored runs: to resume and fork them, to trust their code, to compare.

A store outside the user's root may come from anybody. Its code is run only if the user trusts it, and nothing of
its execution is used, since a scheduler that it names could send any code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from roundweave.flows.config.algorithms import Named, Recombined, is_own_algorithm, is_part
from roundweave.flows.config.experiment import PREPARED, DataConfig, Experiment
from roundweave.flows.config.train import Skipped, TrainConfig
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import DataError, ExperimentDiffers, UsageError, cut, unless_damaged
from roundweave.storage.places.base import Where, above, address_of, full_address
from roundweave.storage.rounds.columns import REFUSED, drifted
from roundweave.storage.runs.names import default_root, stored_round
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.tasks.algorithms.maps.optimizers import is_own_optimizer
from roundweave.tasks.algorithms.table import ALGORITHMS, TABLES, is_own_part
from roundweave.tasks.data.datasets import differing_files
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.sources.table import is_source
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.networks.scores import LOSS_NAMES, SCORES
from roundweave.tasks.networks.start import Fork, Start, find_fork
from roundweave.tasks.own_code.code import Code, is_reference

BUILT_IN: Mapping[str, Callable[[str], bool]] = {
    "data": is_source,
    "validation": is_source,
    "model": MODELS.__contains__,
    "loss": LOSS_NAMES.__contains__,
    "scores": SCORES.__contains__,
    "algorithm": ALGORITHMS.__contains__,
    "recombined": is_part,
    "input": lambda text: not is_reference(text),
    **dict.fromkeys(PREPARED, lambda text: False),
}
"""The fields that may hold code, each with a check whether a text names something built in; the rest is code."""


def resumed_config(run: str, root: Where | None, trust: bool, changes: dict[str, Any]) -> TrainConfig:
    """The configuration to resume a run with: the recorded one with changes of its execution.

    Raises `UsageError` for a merge, for fewer rounds than there are, and for foreign code without `trust`.
    """
    root = root or default_root()
    stored = open_stored(run, root)
    if changes.get("rounds", stored.done) < stored.done:
        raise UsageError(f"{stored.name} has {stored.done} rounds already; give --rounds a larger number")
    return recorded_config(stored, root, trust, changes)


def recorded_config(stored: StoredRun, root: Where, trust: bool, changes: dict[str, Any]) -> TrainConfig:
    """The recorded configuration of a run with changes; raises `UsageError` for foreign code without `trust`.

    Of a run outside the root, only the experiment is used and not the execution.
    """
    experiment = recorded_experiment(stored, root, trust, changes)
    execution = stored.config if is_own_run(stored, root) else {}
    fixed = {"root": root, "address": full_address(stored.address), "name": stored.name, "rounds": stored.rounds}
    return TrainConfig(**execution | experiment | fixed | changes)


def recorded_experiment(run: StoredRun, root: Where, trust: bool, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded fields of a run's experiment, with changes.

    Raises `UsageError` for a merge, and for foreign code that the changes do not replace, without `trust`.
    """
    if run.algorithm == "merge":
        raise UsageError(f"{run.name} is a merge, and no rounds led to it; name a run that was trained")
    recorded = {name: value for name, value in run.config.items() if name in Experiment.model_fields}
    check_trust(run, root, trust, Experiment(**recorded), BUILT_IN.keys() - changes.keys())
    return {**recorded, **changes}


def fork(place: str, root: Where | None = None, trust: bool = False, **changes: Any) -> TrainConfig:
    """The configuration of a run that begins with a stored round and has the experiment of its run.

    Args:
        place: The round, such as ``RUN@12``, ``RUN@last`` or ``RUN@best``.
        root: The folder or address under which runs lie; by default ``$ROUNDWEAVE_ROOT``, or else ``runs``.
        trust: Whether code stored in a run outside the root may be executed.
        changes: Fields and options of the algorithm that differ. Another algorithm keeps none of the old options.

    Returns:
        The configuration, with the fields of a new run's execution at their defaults.

    Raises:
        UsageError: `place` is no stored round, a change does not fit, or the code needs `trust`.
        NotARun: There is no such run.
        RoundMissing: The run has no such round.

    Example:
        >>> config = rw.fork("first@2", lr=0.05, rounds=2, executor="inline")
    """
    stored = stored_round(place)
    if stored is None:
        raise UsageError(
            f"{place} is no stored round such as RUN@12; name one, as {place}@last, or give a file by --start-from"
        )
    if "start_from" in changes:
        raise UsageError(f"a run begins with {place} or with {changes['start_from']}, not with both")
    folder = address_of(root or default_root())
    run = open_stored(stored[0], folder)
    start = find_fork(run, stored[1])
    experiment = recorded_experiment(run, folder, trust, changes)
    if experiment.get("recombined"):
        experiment["recombined"] = {**experiment["recombined"], "before": 0}
    return TrainConfig(**{"root": folder} | experiment | {"start_from": start})


def is_own_run(run: StoredRun, root: Where) -> bool:
    """Whether a run itself, and not only a link to it, lies in the user's root."""
    return above(full_address(run.address)) == full_address(root)


def check_trust(run: StoredRun, root: Where, trust: bool, config: DataConfig, taken: Iterable[str]) -> None:
    """Raise `UsageError` if the fields `taken` from a run outside the root hold code, unless `trust` is given."""
    code = [text for field in taken for text in _code(config, field)]
    if code and not trust and not is_own_run(run, root):
        raise UsageError(
            f"{full_address(run.address)} is outside {root} and holds code ({', '.join(code)}); "
            "read it, then use --trust to run it, or --root for a root of your own"
        )


def _code(config: DataConfig, field: str) -> Iterator[str]:
    """What a field of a configuration names that is not built in, so that it is code."""
    value = getattr(config, field, None)
    if isinstance(value, Named):
        values: Any = (value.name, *(part for kind, part in value.parts.items() if is_own_part(kind, part)))
        optimizer = value.options.get("optimizer", "")
        values += (optimizer,) if is_own_optimizer(optimizer) and not is_own_algorithm(value.name) else ()
    elif isinstance(value, Recombined):
        values = (value.reduce, value.apply)
    else:
        values = value if isinstance(value, tuple) else (value,)
    for one in values:
        if isinstance(one, Code):
            yield one.reference
        elif one is not None and field in BUILT_IN and not (isinstance(one, str) and BUILT_IN[field](one)):
            yield str(one)


def codes_of(config: DataConfig) -> tuple[Code, ...]:
    """All code of the user's in a configuration."""
    values = [getattr(config, field, None) for field in BUILT_IN]
    single = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    every = [each for one in single for each in (one.code if isinstance(one, Named | Recombined) else (one,))]
    return tuple(each for each in every if isinstance(each, Code))


def differences(recorded: Mapping[str, Any], wanted: Experiment) -> list[str]:
    """The fields in which a recorded and a wanted experiment differ, each as a text ``field old -> new``."""
    old = Experiment.of(recorded)
    before, after = _fields(old), _fields(wanted)
    if _identity(before["algorithm"]) == _identity(after["algorithm"]):
        before, after = (
            fields | one.algorithm.options | dict.fromkeys(TABLES) | one.algorithm.parts
            for fields, one in ((before, old), (after, wanted))
        )
    return [
        f"{name} {_difference(before.get(name, 'default'), after.get(name, 'default'))}"
        for name in {**before, **after}
        if _identity(before.get(name)) != _identity(after.get(name))
    ]


def _fields(experiment: Experiment) -> dict[str, Any]:
    """The fields that decide whether two experiments are the same, except the options of the algorithm.

    Data are left out, as examples are compared by their digest and their folder may have moved.
    """
    names = (name for name in Experiment.model_fields if name not in ("data", "validation"))
    fields = {name: getattr(experiment, name) for name in names}
    return fields | {"algorithm": experiment.algorithm.name}


def _identity(value: Any) -> Any:
    if isinstance(value, Fork):
        return value.digest, value.chain
    return value.digest if isinstance(value, Code | Start) else value


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, Code) and isinstance(new, Code) and old.definitions and new.definitions:
        return f"{new.label}, of which {', '.join(new.changed(old))} changed"
    return f"{_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    return f"{value.reference} ({value.digest[:8]})" if isinstance(value, Code | Start) else str(value)


def other_examples(attributes: Mapping[str, Any], digest: str, files: Mapping[str, str]) -> str:
    """A text that says which file, or that examples of this digest, are not the recorded ones; else empty."""
    recorded = attributes.get("data", {})
    was = str(recorded.get("digest"))
    if was == digest:
        return ""
    file = differing_files(recorded.get("files", {}), files)
    other = f"other examples, of digest {digest[:12]} instead of {was[:12]}"
    return f"{file} since the run began" if file else other


def other_data(attributes: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """A text that says which examples, or validation data, are not the recorded ones; else empty."""
    if other := other_examples(attributes, data["digest"], data.get("files", {})):
        return other
    was, now = (each.get("validation", "")[:12] or "none" for each in (attributes.get("data", {}), data))
    return "" if was == now else f"other validation data, {now} instead of {was}"


def check_same_experiment(run: StoredRun, config: TrainConfig, description: Description | None) -> None:
    """Raise `ExperimentDiffers` if a run is of another experiment, or of other examples where they are known."""
    differing = differences(run.config, config)
    other = description and other_data(run.attributes, vars(description))
    if other:
        differing.append(f"data: {other}")
    if differing:
        of_that = f"go on with that one: `roundweave resume {run.name}`"
        if not run.done:
            of_that = f"delete that one, which has no round: `roundweave rm {run.name}`"
        elif other:
            of_that = "restore the examples that it began with"
        advice = f"give this one another --name, or {of_that}"
        if config.address:  # it is resumed
            advice = f"restore them, or begin another run with these: `roundweave train --from {run.name}@-1`"
        raise ExperimentDiffers(f"{run.name} is another experiment ({'; '.join(differing)}); {advice}")


def check_changed(config: TrainConfig, description: Description) -> None:
    """Raise `Skipped` where a new run's examples are those of the run it begins with, and on_unchanged says so.

    Raises `UsageError` where it begins with a file, whose examples nobody knows.
    """
    start = config.start_from
    if not config.on_unchanged or not isinstance(start, Start):
        return
    stored = stored_round(start.reference)
    if stored is None:
        raise UsageError(
            f"on_unchanged needs the examples of a run, and {start.reference} is a file; leave it out"
        )
    parent = open_stored(stored[0])
    if not other_examples(parent.attributes, description.digest, description.files):
        same = f"the examples are those of {parent.name}, digest {description.digest[:12]}"
        raise Skipped(f"{same}; skipped, as on_unchanged says", parent.address)


def with_drift(config: TrainConfig, description: Description) -> Description:
    """A new run's description with what became of the columns of its parent, which is said; raises `UsageError`.

    Where there is no parent, or it recorded no columns, nothing is compared; the latter is refused if the run is
    to be rejected for what has drifted.
    """
    start, record = config.start_from, description.columns
    if not (record.columns and isinstance(start, Start)):
        return description
    stored, refuse = stored_round(start.reference), config.drift == "refuse"
    known = stored and unless_damaged(lambda: open_stored(stored[0]).columns)
    if refuse and not known:
        raise UsageError(f"drift = refuse: {start.reference} has no record of its columns; give drift = tell")
    drift = drifted(known.columns, record.columns) if known else None
    refusals = [str(each) for each in drift or () if refuse and each.what in REFUSED]
    record = replace(record, drift=drift, refusals=refusals)
    for line in cut(record.lines):
        notice(f"drift: {line}")
    return replace(description, columns=record)


def check_examples(run: StoredRun, description: Description) -> None:
    """Raise `DataError` if the examples described are not those that the run recorded."""
    if other := other_data(run.attributes, vars(description)):
        raise DataError(f"{run.name}: {other}; restore the recorded ones")
