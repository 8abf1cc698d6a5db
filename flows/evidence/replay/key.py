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


def code_differences(config: TrainConfig) -> str:
    """Which functions of a recorded configuration are of an installed package that has another version now."""
    codes = (code for field in BUILT_IN for code in _codes(getattr(config, field, None)))
    changed = ((code, code.now()) for code in codes)
    return "; ".join(f"{old.label} is of another version" for old, new in changed if new != old)


def _codes(value: Any) -> Iterator[Code]:
    match value:
        case Code():
            yield value
        case Named():
            yield from value.code
        case tuple():
            yield from (code for one in value for code in _codes(one))
