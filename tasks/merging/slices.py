"""Networks whose layers are put together anew from those of others, as mergekit's `passthrough` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, model_validator

from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.storage.values.lazy import LazyTensors, changed, known_specs, picked
from roundweave.storage.values.tensors import TensorSpec
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.averages.settings import (
    NUMBERED,
    OneSetting,
    check_filters,
    is_after,
    is_before,
    setting_at,
)

COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""Members of a configuration of transformers that say how many layers there are."""


class Slice(BaseModel):
    """Layers of a network, from one number to before another, and what their tensors are multiplied by."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str
    layers: tuple[int, int]
    scale: OneSetting = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> Slice:
        if not 0 <= self.layers[0] < self.layers[1]:
            raise ValueError(f"layers {[*self.layers]} of {self.network}: give two numbers, the second the larger")
        return self


def stacked(slices: Sequence[Slice], networks: Mapping[str, Tensors]) -> LazyTensors:
    """Return the network of these slices, one upon the other, whose layers are numbered anew; nothing is read.

    What lies before the layers, such as an embedding, is of the first slice, and what lies after them of the last
    one. A gradient of `scale` goes from the first layer of a slice to its last. Integers are not scaled. Raises
    `UsageError` if there is no one stack of layers, layers differ, or a rule of `scale` is for no tensor or a
    tensor for no rule.
    """
    stem = _stem(networks)
    known = {place: {spec.name: spec for spec in known_specs(tensors)} for place, tensors in networks.items()}
    sources: dict[str, tuple[Slice, float, str]] = {}
    for new, (part, depth, own) in enumerate(_layers(slices, stem, known)):
        names = [name for name in known[part.network] if name.startswith(own)]
        sources |= {f"{stem}{new}.{name.removeprefix(own)}": (part, depth, name) for name in names}
    sources |= _outside(slices[0], slices[-1], networks, stem)
    stack = picked({new: (networks[part.network], name) for new, (part, _, name) in sources.items()})
    for part in slices:
        check_filters(part.scale, sources)
    scales = {new: setting_at("scale", part.scale, new, depth) for new, (part, depth, _) in sources.items()}

    def scaled(name: str, tensor: torch.Tensor) -> torch.Tensor:
        plain = scales[name] == 1 or not (tensor.is_floating_point() or tensor.is_complex())
        return tensor if plain else tensor * scales[name]

    return changed(stack, stack.specs, scaled)


def _stem(networks: Mapping[str, Tensors]) -> str:
    """What stands before the numbers of layers in the names of tensors, which is the same in all networks."""
    found = {m.string[: m.start(1)] for tensors in networks.values() for m in map(NUMBERED.search, tensors) if m}
    if len(found) != 1:
        given = ", ".join(f"{stem}0" for stem in sorted(found)) or "none"
        raise UsageError(f"slices need networks with one stack of layers, as model.layers.0, not {given}")
    return found.pop()


def _layers(
    slices: Sequence[Slice], stem: str, known: Mapping[str, Mapping[str, TensorSpec]]
) -> Iterator[tuple[Slice, float, str]]:
    """For each layer its slice, how deep it lies in it, from 0 to 1, and the beginning of its tensors' names.

    Raises `UsageError` for a layer that is lacking or unlike the others.
    """
    of_first = None
    for part in slices:
        start, end = part.layers
        for number in range(start, end):
            own = f"{stem}{number}."
            specs = known[part.network].items()
            shapes = {name.removeprefix(own): spec.shape for name, spec in specs if name.startswith(own)}
            if not shapes:
                raise UsageError(f"{part.network} has no layer {own[:-1]}; layers are numbered from 0")
            if shapes != (of_first := of_first or shapes):
                raise UsageError(f"{own[:-1]} of {part.network} has other tensors than the first one")
            yield part, (number - start) / (end - 1 - start) if end - 1 > start else 1.0, own


def _outside(
    first: Slice, last: Slice, networks: Mapping[str, Tensors], stem: str
) -> dict[str, tuple[Slice, float, str]]:
    """Whence the tensors outside of the layers are: those before them of the first slice, others of the last."""
    each = (networks[part.network] for part in (first, last))
    lower, upper = ([name for name in names if not name.startswith(stem)] for names in each)
    every = {name for name in (*lower, *upper) if not (is_before(name) or is_after(name))}
    if every and first.network != last.network:
        raise UsageError(
            f"{min(every)}: its name does not say if it is before or after the layers of the networks"
        )
    before = {name: (first, 0.0, name) for name in lower if is_before(name)}
    return before | {name: (last, 1.0, name) for name in upper if not is_before(name)}


def sliced_config(
    slices: Sequence[Slice], config: Mapping[str, Any], every: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a configuration of transformers, which fits all networks, with the new number of layers.

    What it lists for each layer, such as `layer_types`, is put together as the layers are. `every` has the whole
    configurations of networks that have other numbers of layers. Raises `CheckpointError` if it does not say how
    many layers there are.
    """
    each = [(every or {}).get(part.network, config) for part in slices]
    count = next((name for name in COUNTS if isinstance(config.get(name), int)), None)
    if count is None:
        raise CheckpointError(f"the configuration of {slices[0].network} has none of {', '.join(COUNTS)}")
    parts = [(own, slice(*part.layers)) for own, part in zip(each, slices, strict=True)]
    new = {name: [one for own, layers in parts for one in own[name][layers]] for name in by_layer(each[0])}
    return {**config, **new, count: sum(end - first for first, end in (part.layers for part in slices))}


def by_layer(config: Mapping[str, Any]) -> set[str]:
    """Return the members of a configuration that list something for each layer."""
    counts = [config[name] for name in COUNTS if name in config]
    return {n for n, v in config.items() if "layer" in n and isinstance(v, list) and len(v) in counts}
