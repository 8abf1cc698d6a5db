"""The key of a run: what decides its bits besides what is stored, as it was recorded and as it is now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flows.config.algorithms import Named
from flows.config.recorded import BUILT_IN, other_examples
from flows.config.train import TrainConfig
from storage.runs.run import Run
from storage.values.digests import differing
from tasks.data.partitions import Description
from tasks.numerics import Fingerprint, differing_numerics, versions
from tasks.user_code import Code


def key_differences(
    stored: Run, code: str, description: Description, fingerprints: Mapping[str, Fingerprint]
) -> dict[str, str]:
    """What differs by name, of what a run recorded and what there is now; `code` says it of the code."""
    recorded = {name: value for name, value in stored.attributes.items() if isinstance(value, Mapping)}
    parts = {
        "fingerprint": _fingerprint(dict(recorded.get("fingerprint", {})), fingerprints),
        "code": code,
        "data": other_examples(recorded, description.digest),
        "versions": _versions(recorded.get("versions", {})),
    }
    return {name: what for name, what in parts.items() if what}


def _fingerprint(recorded: Fingerprint, found: Mapping[str, Fingerprint]) -> str:
    if not recorded:
        return "none was recorded, for the run accepts unequal machines"
    places: dict[str, str] = {}
    for place, one in found.items():
        if differs := differing_numerics(recorded, one):
            places.setdefault(differs, place)
    return "; ".join(f"{place} has {differs}" for differs, place in places.items())


def _versions(recorded: Mapping[str, Any]) -> str:
    now = versions()
    names = differing(recorded, now)
    return ", ".join(f"{name} {now.get(name)} instead of {recorded.get(name)}" for name in names)


def with_code_now(config: TrainConfig) -> tuple[TrainConfig, str]:
    """A recorded configuration, its code with the modules beside it as they are now, and what of it changed."""
    before = {field: getattr(config, field, None) for field in BUILT_IN}
    now = {field: _now(value) for field, value in before.items() if value is not None}
    pairs = (pair for field in now for pair in zip(_codes(before[field]), _codes(now[field]), strict=True))
    changed = {new.label: ", ".join(new.changed(old)) for old, new in pairs}
    said = [f"{label}, of which {names} changed" for label, names in changed.items() if names]
    return config.model_copy(update=now), "; ".join(said)


def _now(value: Any) -> Any:
    match value:
        case Code():
            return value.beside_now()
        case Named():
            return value.model_copy(update={"name": _now(value.name)})
        case tuple():
            return tuple(map(_now, value))
    return value


def _codes(value: Any) -> Iterator[Code]:
    match value:
        case Code():
            yield value
        case Named():
            yield from value.code
        case tuple():
            yield from (code for one in value for code in _codes(one))
