"""Networks whose layers are put together anew from those of others, as mergekit's `passthrough` does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from roundweave.storage.checkpoints.files import known_specs
from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.storage.parsing import from_json
from roundweave.storage.values.tensors import LazyTensors, TensorSpec
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.averages.settings import NUMBERED, Setting, filters, setting_at, varies

COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""Members of a configuration of transformers that say how many layers there are."""

BEFORE = re.compile(r"(^|[._])(emb(?!ed_out)|wte|wpe)")
"""Matches names of tensors that a network has before its layers."""

AFTER = re.compile(r"norm|ln_f|head|classifier|score|pooler|cls|embed_out")
"""Matches names of tensors that a network has after its layers, if they are none before them."""


class Slice(BaseModel):
    """Layers of a network, from one number to before another; their tensors are multiplied by `scale`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str
    layers: tuple[int, int]
    scale: Setting = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> Slice:
        if not 0 <= self.layers[0] < self.layers[1]:
            raise ValueError(f"layers {[*self.layers]} of {self.network}: give two numbers, the second the larger")
        return self


SLICES = TypeAdapter(tuple[Slice, ...])


def read_slices(given: Any) -> tuple[Slice, ...]:
    """Slices as they are, or of mappings, or of JSON; raises `ValueError` for anything else."""
    return SLICES.validate_python(from_json(given) if isinstance(given, str) else given or ())


def stacked(slices: Sequence[Slice], networks: Mapping[str, Tensors]) -> LazyTensors:
    """The network of these slices, one upon the other, whose layers are numbered anew; nothing is read.

    What lies before the layers, such as an embedding, is that of the first slice's network, and what lies after
    them that of the last one's. Raises `UsageError` where there is no one stack of layers, or layers differ.
    """
    stem = _stem(networks)
    known = {place: {spec.name: spec for spec in known_specs(tensors)} for place, tensors in networks.items()}
    source: dict[str, tuple[Slice, str]] = {}
    for new, (part, number) in enumerate(_layers(slices, stem, known)):
        own = f"{stem}{number}."
        source |= {
            f"{stem}{new}.{n.removeprefix(own)}": (part, n) for n in known[part.network] if n.startswith(own)
        }
    source |= _outside(slices, networks, stem)
    for part in slices:
        _check_scale(part, [name for of, name in source.values() if of is part])

    def read(new: str) -> torch.Tensor:
        part, name = source[new]
        scale = setting_at("scale", part.scale, name, 0.0)
        return networks[part.network][name] * scale if scale != 1 else networks[part.network][name]

    specs = tuple(replace(known[part.network][name], name=new) for new, (part, name) in source.items())
    return LazyTensors(tuple(source), read, specs)


def _stem(networks: Mapping[str, Tensors]) -> str:
    """What stands before the numbers of layers in the names of tensors, which is the same in all networks."""
    found = {m.string[: m.start(1)] for tensors in networks.values() for m in map(NUMBERED.search, tensors) if m}
    if len(found) != 1:
        given = ", ".join(f"{stem}0" for stem in sorted(found)) or "none"
        raise UsageError(
            f"slices are of networks with one stack of layers, as model.layers.0, and here is {given}"
        )
    return found.pop()


def _layers(
    slices: Sequence[Slice], stem: str, known: Mapping[str, Mapping[str, TensorSpec]]
) -> Iterator[tuple[Slice, int]]:
    """Each layer by its slice and its number there; raises `UsageError` for one that is lacking or unlike."""
    first = None
    for part in slices:
        for number in range(*part.layers):
            own = f"{stem}{number}."
            specs = known[part.network].items()
            shapes = {name.removeprefix(own): spec.shape for name, spec in specs if name.startswith(own)}
            if not shapes:
                raise UsageError(f"{part.network} has no layer {own[:-1]}; layers are numbered from 0")
            if shapes != (first := first or shapes):
                raise UsageError(f"{own[:-1]} of {part.network} has other tensors than the first one")
            yield part, number


def _outside(slices: Sequence[Slice], networks: Mapping[str, Tensors], stem: str) -> dict[str, tuple[Slice, str]]:
    """Where the tensors outside of the layers come from, by name."""
    first, last = slices[0], slices[-1]
    names = {part.network: [n for n in networks[part.network] if not n.startswith(stem)] for part in (first, last)}
    if first.network == last.network:
        return {name: (first if BEFORE.search(name) else last, name) for name in names[first.network]}
    every = dict.fromkeys([*names[first.network], *names[last.network]])
    if odd := next((name for name in every if not (BEFORE.search(name) or AFTER.search(name))), None):
        raise UsageError(f"{odd}: its name does not say whether it is before or after the layers of the networks")
    return {name: (first, name) for name in names[first.network] if BEFORE.search(name)} | {
        name: (last, name) for name in names[last.network] if not BEFORE.search(name)
    }


def _check_scale(part: Slice, names: Sequence[str]) -> None:
    """Raise `UsageError` where a scale is for none of the tensors of these names, or goes from layer to layer."""
    if varies(part.scale):
        raise UsageError(f"scale {part.scale} of {part.network}: give a number, or rules with one each")
    if lacking := next((text for text in filters(part.scale) if not any(text in name for name in names)), None):
        raise UsageError(f"filter {lacking!r} is in the name of no tensor of the slice of {part.network}")


def sliced_config(slices: Sequence[Slice], configs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The configuration of transformers of the first slice's network with the new number of layers.

    What it lists for each layer, such as `layer_types`, is put together as the layers are. Raises
    `CheckpointError` where it does not say how many layers there are.
    """
    config = dict(configs[slices[0].network])
    keys = [key for key in COUNTS if isinstance(config.get(key), int)]
    if len(keys) != 1:
        raise CheckpointError(f"the configuration of {slices[0].network} has none of {', '.join(COUNTS)}")
    (key,) = keys
    for name, value in configs[slices[0].network].items():
        if "layer" in name and isinstance(value, list) and len(value) == config[key]:
            config[name] = [each for part in slices for each in configs[part.network][name][slice(*part.layers)]]
    return config | {key: sum(end - first for first, end in (part.layers for part in slices))}
