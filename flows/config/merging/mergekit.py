"""Configurations of mergekit, which are YAML, as the values of a merge that matches nothing, as mergekit does."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field

from roundweave.flows.config.base import Config
from roundweave.storage.errors import CheckpointError, UsageError, failing_as, nearest, reason
from roundweave.storage.parsing import mistakes_as
from roundweave.storage.runs.opening import open_checkpoint
from roundweave.tasks.algorithms.options import options_of
from roundweave.tasks.merging.averages.settings import NUMBERED, is_after
from roundweave.tasks.merging.averages.table import AVERAGES

AnyForm = TypeVar("AnyForm", bound=Config)

PASSTHROUGH = "passthrough"

METHODS = {"linear": "mean", **{name: name for name in AVERAGES if name != "mean"}, PASSTHROUGH: "slices"}
"""The averages of mergekit's methods, and what puts layers together anew."""

SHARED = {"t": "t", "lambda": "scaling"}
"""Our names of mergekit's parameters that are settings of all models."""

SWITCHES = ("normalize", "rescale")
"""Parameters that are one truth value for all tensors."""

OF_A_MODEL = ("weight", "density")
"""Parameters that each model may have for itself."""

IGNORED = ("int8_mask",)
"""Parameters that change how much memory mergekit takes, and no number."""

SCALE = "scale"
"""The only parameter of slices."""

WHOLE = 1.0
"""The density, or the scale, where mergekit's file gives none."""


class _Source(Config):
    model: str
    layer_range: tuple[int, int] | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)


class _Slice(Config):
    sources: list[dict[str, Any]]
    parameters: dict[str, Any] = Field(default_factory=dict)


class _File(Config):
    merge_method: str
    models: list[dict[str, Any]] = Field(default_factory=list)
    slices: list[dict[str, Any]] = Field(default_factory=list)
    base_model: str | None = None
    dtype: str | None = None
    tokenizer_source: Literal["union", "base"] | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads plain values, and refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ValueError(f"{twice} is there twice")
        return dict(super().construct_mapping(node, deep))


def read_mergekit(path: Path) -> dict[str, Any]:
    """Return the values of `MergeConfig` that a file of mergekit means; its paths go from the current folder.

    Raises `UsageError` for each key that is not read: none that decides a number is ignored.
    """
    with failing_as(lambda error: UsageError(f"cannot read {path} ({reason(error)})")):
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    if not isinstance(values, dict):
        raise UsageError(f"{path} is no configuration of mergekit: it holds no keys")
    with mistakes_as(lambda error: UsageError(f"{path}: {error}"), UsageError):
        return _meant(_known(_File, values))


def _meant(file: _File) -> dict[str, Any]:
    """Return the values of `MergeConfig` that a file means."""
    _check_name("merge_method", file.merge_method, METHODS)
    if bool(file.models) == bool(file.slices):
        raise UsageError("give either models or slices")
    if file.merge_method == PASSTHROUGH:
        return {"match": "none", "slices": _slices(file), **({"dtype": file.dtype} if file.dtype else {})}
    sources, scopes = _sources(file)
    for parameter in {*file.parameters, *(name for scope in scopes for name in scope)}:
        _check_name("parameter", parameter, (*OF_A_MODEL, *SHARED, *SWITCHES, *IGNORED))
    average, given = METHODS[file.merge_method], {"dtype": file.dtype} if file.dtype else {}
    networks, base = _ordered(file, average, sources)
    if file.tokenizer_source:
        given["vocabulary"] = "first" if file.tokenizer_source == "base" and not base else file.tokenizer_source
    return {"match": "none", "average": average, **given, **base} | _options(average, networks, scopes)


def _slices(file: _File) -> list[dict[str, Any]]:
    """Return the slices of a passthrough, each of one model."""
    found = []
    for each in (_known(_Slice, values) for values in file.slices):
        sources = [_known(_Source, values) for values in each.sources]
        if len(sources) != 1 or not sources[0].layer_range:
            raise UsageError("passthrough takes slices of one source each, with its layer_range")
        (source,) = sources
        scopes = (source.parameters, each.parameters, file.parameters)
        for parameter in (parameter for scope in scopes for parameter in scope):
            _check_name(f"{PASSTHROUGH}'s parameter", parameter, (SCALE,))
        given = {} if (scale := _setting(SCALE, scopes)) is None else {"scale": scale}
        found.append({"network": source.model, "layers": source.layer_range, **given})
    if not found or file.base_model not in (None, found[0]["network"]):
        raise UsageError(f"{PASSTHROUGH} takes slices, and no base_model but the first one's model")
    return found


def _known(form: type[AnyForm], values: Mapping[str, Any]) -> AnyForm:
    for key in values:
        _check_name("key", key, form.model_fields)
    return form(**{str(key): value for key, value in values.items()})


def _check_name(what: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        there = f"those that are: {', '.join(names) or 'none'}"
        raise UsageError(f"{what} {name!r} of mergekit is not read here; {nearest(name, names, there)}")


def _sources(file: _File) -> tuple[list[_Source], list[Mapping[str, Any]]]:
    """Return the models, and the parameters of all, the closest scope first; slices must be of whole models."""
    if file.models:
        sources = [_known(_Source, each) for each in file.models]
        scopes: list[Mapping[str, Any]] = [file.parameters]
    else:
        every = [_known(_Slice, each) for each in file.slices]
        if len(every) > 1:
            raise UsageError(
                "slices: layers are put together anew by passthrough alone; give one slice of all layers"
            )
        sources = [_known(_Source, each) for each in every[0].sources]
        scopes = [every[0].parameters, file.parameters]
    for source in sources:
        for parameter in source.parameters:
            _check_name("parameter", parameter, OF_A_MODEL)
        if source.layer_range and source.layer_range != (0, count := _layers(source.model)):
            raise UsageError(
                f"layer_range {[*source.layer_range]}: {source.model} has {count} layers, and a merge needs all"
            )
    return sources, scopes


def _layers(place: str) -> int:
    return 1 + max((int(found[1]) for found in map(NUMBERED.search, open_checkpoint(place)) if found), default=-1)


def _ordered(file: _File, average: str, sources: list[_Source]) -> tuple[list[_Source], dict[str, Any]]:
    """The networks, without the base of task vectors and with the base of others first, and the base's value."""
    base = file.base_model
    others = [source for source in sources if source.model != base]
    if AVERAGES[average].load().needs_base:
        return others, {"base": base} if base else {}
    if base is None or len(others) < len(sources):
        return [*(source for source in sources if source.model == base), *others], {}
    if average != "slerp":
        raise UsageError(f"base_model {base} is none of the models, and {file.merge_method} takes no other")
    return [_Source(model=base), *others], {}


def _options(average: str, networks: list[_Source], scopes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    given = {option: _setting(parameter, scopes) for parameter, option in SHARED.items()}
    given |= {switch: scope[switch] for scope in reversed(scopes) for switch in SWITCHES if switch in scope}
    weights, densities = ([_setting(p, [source.parameters, *scopes]) for source in networks] for p in OF_A_MODEL)
    if average != "slerp" or any(weight is not None for weight in weights):
        if None in weights:
            lacking = networks[weights.index(None)].model
            raise UsageError(f"{lacking} has no weight; {average} needs one for each model")
        given["coefficients"] = tuple(weights)
    if "density" in options_of(AVERAGES[average].load()) or any(each is not None for each in densities):
        given["density"] = tuple(WHOLE if each is None else each for each in densities)
    values = {option: value for option, value in given.items() if value is not None}
    values |= {n: tuple(_at_ends(each, networks[0].model) for each in values[n]) for n in OF_EACH if n in values}
    values |= {name: _at_ends(values[name], networks[0].model) for name in SHARED.values() if name in values}
    return {"networks": tuple(source.model for source in networks), **values}


OF_EACH = ("coefficients", "density")
"""Our names of the settings that each network has for itself."""


def _at_ends(setting: Any, network: str) -> Any:
    """A setting that has a gradient's first number for tensors after the layers, too, as it is read there."""
    rules = setting if isinstance(setting, tuple) else ({"value": setting},)
    gradient = any(isinstance(rule.get("value"), list) for rule in rules)
    ends = []
    for name in _after(network) if gradient else ():
        fitting = (rule["value"] for rule in rules if rule.get("filter") in (None, "*") or rule["filter"] in name)
        if isinstance(value := next(fitting, None), list):
            ends.append({"filter": f"={name}", "value": value[0]})
    return (*ends, *rules) if ends else setting


def _after(network: str) -> list[str]:
    with suppress(CheckpointError):  # the merge itself says what is wrong with a network
        return [name for name in open_checkpoint(network) if is_after(name) and not NUMBERED.search(name)]
    return []


def _setting(parameter: str, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """Return the setting of a parameter: rules of closer scopes before those of wider ones.

    None if no scope has any.
    """
    rules: list[dict[str, Any]] = []
    for given in (scope[parameter] for scope in scopes if parameter in scope):
        listed = [given] if isinstance(given, dict) else given
        if not (isinstance(listed, list) and any(isinstance(each, dict) for each in listed)):
            rules.append({"value": given})
            break
        rules += listed
    if parameter in ("density", SCALE) and rules:
        rules.append({"value": WHOLE})
    if not rules:
        return None
    return rules[0]["value"] if rules[0].get("filter") in (None, "*") and "value" in rules[0] else tuple(rules)
