"""Networks whose layers are put together anew from those of others, as mergekit's `passthrough` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.storage.values.lazy import LazyTensors, known_specs, picked
from roundweave.storage.values.tensors import TensorSpec
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.averages.settings import NUMBERED, is_after, is_before

COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""Members of a configuration of transformers that say how many layers there are."""


class Slice(BaseModel):
    """Layers of a network, from one number to before another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str
    layers: tuple[int, int]

    @model_validator(mode="after")
    def _in_order(self) -> Slice:
        if not 0 <= self.layers[0] < self.layers[1]:
            raise ValueError(f"layers {[*self.layers]} of {self.network}: give two numbers, the second the larger")
        return self


def stacked(slices: Sequence[Slice], networks: Mapping[str, Tensors]) -> LazyTensors:
    """The network of these slices, one upon the other, whose layers are numbered anew; nothing is read.

    What lies before the layers, such as an embedding, is that of the first slice's network, and what lies after
    them that of the last one's. Raises `UsageError` where there is no one stack of layers, or layers differ.
    """
    stem = _stem(networks)
    known = {place: {spec.name: spec for spec in known_specs(tensors)} for place, tensors in networks.items()}
    sources: dict[str, tuple[str, str]] = {}
    for new, (place, own) in enumerate(_layers(slices, stem, known)):
        sources |= {f"{stem}{new}.{n.removeprefix(own)}": (place, n) for n in known[place] if n.startswith(own)}
    sources |= _outside(slices[0].network, slices[-1].network, networks, stem)
    return picked({new: (networks[place], name) for new, (place, name) in sources.items()})


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
) -> Iterator[tuple[str, str]]:
    """The network and the beginning of the names of each layer; raises `UsageError` for one lacking or unlike."""
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
            yield part.network, own


def _outside(first: str, last: str, networks: Mapping[str, Tensors], stem: str) -> dict[str, tuple[str, str]]:
    """Whence the tensors outside of the layers are: those before them of the first network, others of the last."""
    names = {place: [name for name in networks[place] if not name.startswith(stem)] for place in (first, last)}
    every = {name for each in names.values() for name in each if not (is_before(name) or is_after(name))}
    if every and first != last:
        raise UsageError(
            f"{min(every)}: its name does not say if it is before or after the layers of the networks"
        )
    before = {name: (first, name) for name in names[first] if is_before(name)}
    return before | {name: (last, name) for name in names[last] if not is_before(name)}


def sliced_config(slices: Sequence[Slice], config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of transformers, which fits all networks, with the new number of layers.

    What it lists for each layer, such as `layer_types`, is put together as the layers are. Raises
    `CheckpointError` where it does not say how many layers there are.
    """
    count = next((name for name in COUNTS if isinstance(config.get(name), int)), None)
    if count is None:
        raise CheckpointError(f"the configuration of {slices[0].network} has none of {', '.join(COUNTS)}")
    each = {n: v for n, v in config.items() if "layer" in n and isinstance(v, list) and len(v) == config[count]}
    new = {n: [one for part in slices for one in v[slice(*part.layers)]] for n, v in each.items()}
    return {**config, **new, count: sum(end - first for first, end in (part.layers for part in slices))}
