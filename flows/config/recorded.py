"""Configurations from the records of stored runs: to resume and fork them, to trust their code, to compare.

A store outside the user's root may come from anybody. Its code is run only if the user trusts it, and nothing of
its execution is used, since a scheduler that it names could send any code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import Any

from roundweave.flows.config.algorithms import Named, Recombined, is_own_algorithm
from roundweave.flows.config.base import own_options
from roundweave.flows.config.experiment import DataConfig, Experiment
from roundweave.flows.config.plugins import OwnPlugin, plugin_classes
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import DataError, ExperimentDiffers, NotARun, UsageError
from roundweave.storage.parsing import at_commas
from roundweave.storage.places.base import Where, above, address_of, full_address
from roundweave.storage.runs.names import default_root, find_run, stored_round
from roundweave.storage.runs.run import Opener, StoredRun, open_stored
from roundweave.tasks.algorithms.maps.optimizers import is_own_optimizer
from roundweave.tasks.algorithms.table import TABLES, is_own_part
from roundweave.tasks.data.datasets import differing_files
from roundweave.tasks.data.description import Description
from roundweave.tasks.networks.start import Fork, Start, find_fork
from roundweave.tasks.own_code.code import Code

BESIDE = own_options(Experiment, data=True).keys() - {"data"}
"""The options that name data that are scored beside the run's own; such scores begin with the option's name."""


def resumed_config(run: str, root: Where | None, trust: bool, changes: dict[str, Any]) -> TrainConfig:
    """Return the configuration to resume a run with: the recorded one with changes of its execution.

    Raises `UsageError` for a merge, for fewer rounds than there are, and for foreign code without `trust`.
    """
    root = root or default_root()
    stored = StoredRun(find_run(run, root))
    if changes.get("rounds", stored.done) < stored.done:
        raise UsageError(f"{stored.name} has {stored.done} rounds already; give --rounds a larger number")
    return recorded_config(stored, root, trust, changes)


def recorded_config(stored: StoredRun, root: Where, trust: bool, changes: dict[str, Any]) -> TrainConfig:
    """Return the recorded configuration of a run with changes.

    Raises `UsageError` for foreign code without `trust`.

    Of a run outside the root, only the experiment is used and not the execution. Plugins among the changes take
    the place of the recorded ones that decide no bits.
    """
    changes = {**changes}
    given = at_commas(changes.pop("plugins", None))
    experiment = recorded_experiment(stored, root, trust, changes)
    execution = stored.config if is_own_run(stored, root) else {}
    if gone := execution.keys() - {*TrainConfig.model_fields, *TrainConfig.known}:
        notice(f"{stored.name} continues without {', '.join(sorted(gone))}: no installed plugin has them")
        execution = {name: value for name, value in execution.items() if name not in gone}
    decide = experiment["plugins"]
    experiment["plugins"] = execution.get("plugins", decide) if given is None else [*decide, *given]
    fixed: dict[str, Any] = {"root": root, "address": full_address(stored.address), "name": stored.name}
    fixed["rounds"] = max(1, stored.rounds)  # of a view of round 0 there are none
    return TrainConfig(**execution | experiment | fixed | changes)


def recorded_experiment(run: StoredRun, root: Where, trust: bool, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded fields of a run's experiment, with changes.

    Raises `UsageError` for a merge, and for foreign code that the changes do not replace, without `trust`.
    """
    if run.algorithm == "merge":
        raise UsageError(f"{run.name} is a merge and has no training rounds; name a run that was trained")
    recorded = {name: value for name, value in run.config.items() if name in Experiment.model_fields}
    recorded["plugins"] = _deciding(run.config)
    installed = {plugin.place() for plugin in plugin_classes()}
    if lacking := [place for place in run.attributes.get("decided_by", ()) if place not in installed]:
        raise UsageError(f"{run.name} needs the plugin {lacking[0]}, which is not installed; install its package")
    check_trust(run, root, trust, Experiment(**recorded), own_options(Experiment).keys() - changes.keys())
    return {**recorded, **changes}


def _deciding(recorded: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the recorded plugins of the user's that decide bits. Raises `NotARun` for what no run records.

    A record may be anybody's. A name alone would stand for a file of this machine, which would be run.
    """
    deciding = list[dict[str, Any]]()
    for each in recorded.get("plugins", []):
        match each:
            case {"name": dict(), "decides": bool(decides)}:
                deciding += [each] * decides
            case _:
                raise NotARun(f"a record has the plugin {str(each)[:80]}, which no run records")
    return deciding


def forked(
    place: str, root: Where | None, trust: bool, changes: dict[str, Any], opened: Opener = open_stored
) -> TrainConfig:
    """Return the configuration that `roundweave.fork` gives, which has its errors.

    The run is `opened` by a function.
    """
    stored = stored_round(place)
    if stored is None:
        raise UsageError(
            f"{place} is no stored round such as RUN@12; name one, as {place}@last, or give a file by --start-from"
        )
    if "start_from" in changes:
        raise UsageError(f"a run begins with {place} or with {changes['start_from']}, not with both")
    folder = address_of(root or default_root())
    run = opened(stored[0], folder)
    start = find_fork(run, stored[1], opened)
    experiment = recorded_experiment(run, folder, trust, changes)
    if experiment.get("recombined"):
        experiment["recombined"] = {**experiment["recombined"], "before": 0}
    return TrainConfig(**{"root": folder} | experiment | {"start_from": start})


def is_own_run(run: StoredRun, root: Where) -> bool:
    """Tell whether a run itself, and not only a link to it, lies in the user's root."""
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
    """Yield what a field of a configuration names that is not built in, so that it is code."""
    value, mark = getattr(config, field, None), own_options(type(config)).get(field)
    if isinstance(value, Named):
        values: Any = (value.name, *(part for kind, part in value.parts.items() if is_own_part(kind, part)))
        optimizer = value.options.get("optimizer", "")
        values += (optimizer,) if is_own_optimizer(optimizer) and not is_own_algorithm(value.name) else ()
    elif isinstance(value, Recombined):
        values = (value.reduce, value.apply)
    elif field == "plugins":
        values = tuple(each.code for each in value or ())
    else:
        values = value if isinstance(value, tuple) else (value,)
    for one in values:
        if isinstance(one, Code):
            yield one.reference
        elif one is not None and mark and not (isinstance(one, str) and mark.is_built_in(one)):
            yield str(one)


def codes_of(config: Experiment) -> tuple[Code, ...]:
    """Return all code of the user's in a configuration."""
    values = [getattr(config, option) for option in own_options(Experiment)]
    single = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return (*config.code, *(one for one in single if isinstance(one, Code)))


def differences(recorded: Mapping[str, Any], wanted: Experiment) -> list[str]:
    """The fields in which a recorded and a wanted experiment differ, each as a text ``field old -> new``."""
    old = Experiment.of({**recorded, "plugins": _deciding(recorded)})
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
    """Return the fields that decide whether two experiments are the same, except the options of the algorithm.

    Data are left out, as examples are compared by their digest and their folder may have moved.
    """
    data = own_options(Experiment, data=True)
    fields = {name: getattr(experiment, name) for name in Experiment.model_fields if name not in data}
    plugins = tuple(each for each in experiment.plugins if each.decides)
    return fields | {"algorithm": experiment.algorithm.name, "plugins": plugins}


def _identity(value: Any) -> Any:
    if isinstance(value, Fork):
        return value.digest, value.chain
    if isinstance(value, OwnPlugin):
        return value.code.digest, value.model_extra
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value.digest if isinstance(value, Code | Start) else value


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, Code) and isinstance(new, Code) and (old.name, old.python) == (new.name, new.python):
        return f"{new.label}, of which {', '.join(new.changed(old))} changed"
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        pairs = [pair for pair in zip(old, new, strict=True) if _identity(pair[0]) != _identity(pair[1])]
        return "; ".join(starmap(_difference, pairs))
    if isinstance(old, OwnPlugin) and isinstance(new, OwnPlugin) and old.model_extra == new.model_extra:
        return _difference(old.code, new.code)
    return f"{_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    if isinstance(value, OwnPlugin):
        return value.label
    if isinstance(value, tuple) and not any(isinstance(each, tuple) for each in value):
        return ", ".join(map(_shown, value))
    return f"{value.reference} ({value.digest[:8]})" if isinstance(value, Code | Start) else str(value)


def other_examples(attributes: Mapping[str, Any], digest: str, files: Mapping[str, str]) -> str:
    """Return a text that says which file, or that examples of this digest, are not the recorded ones.

    Else empty.
    """
    recorded = attributes.get("data", {})
    was = str(recorded.get("digest"))
    if was == digest:
        return ""
    file = differing_files(recorded.get("files", {}), files)
    other = f"other examples, of digest {digest[:12]} instead of {was[:12]}"
    return f"{file} since the run began" if file else other


def other_data(attributes: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return a text that says which examples, or other data of an option, are not the recorded ones.

    Else empty.
    """
    if other := other_examples(attributes, data["digest"], data.get("files", {})):
        return other
    for name in BESIDE:
        was, now = (each.get(name, "")[:12] or "none" for each in (attributes.get("data", {}), data))
        if was != now:
            return f"other {name} data, {now} instead of {was}"
    return ""


def check_same_experiment(run: StoredRun, config: TrainConfig, decided_by: Mapping[str, str]) -> None:
    """Raise `ExperimentDiffers` if a run is of another experiment, or its plugins are of other packages."""
    then: dict[str, str] = run.attributes["versions"]
    others = [f"plugin {n} of {then[n]} -> {now}" for n, now in decided_by.items() if then.get(n, now) != now]
    if differing := [*differences(run.config, config), *others]:
        raise _another(run, config, "; ".join(differing), "go on with that one: `roundweave resume {}`")


def check_same_examples(run: StoredRun, config: TrainConfig, description: Description) -> None:
    """Raise `ExperimentDiffers` if a run is of other examples than those described."""
    if other := other_data(run.attributes, description.recorded):
        raise _another(run, config, f"data: {other}", "restore the examples that it began with")


def _another(run: StoredRun, config: TrainConfig, differing: str, advice: str) -> ExperimentDiffers:
    if not run.done:
        advice = "delete that one, which has no round: `roundweave rm {}`"
    advice = f"give this one another --name, or {advice.format(run.name)}"
    if config.address:  # it is resumed
        advice = f"restore them, or begin another run with these: `roundweave train --from {run.name}@-1`"
    error = ExperimentDiffers(f"{run.name} is another experiment ({differing}); {advice}")
    error.run = run.name
    return error


def check_examples(run: StoredRun, data: Mapping[str, Any]) -> None:
    """Raise `DataError` if data are not those that the run recorded."""
    if other := other_data(run.attributes, data):
        raise DataError(f"{run.name}: {other}; restore the recorded ones")
