"""Named tensors that are read or computed when they are asked for, whole or a block of elements at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from roundweave.storage.values.tensors import Specs, is_dense, specs_of

BLOCK = 1 << 17
"""The number of elements of a block, few enough to stay in a processor's cache from one step to the next."""

Tensors = Mapping[str, torch.Tensor]
"""Tensors by name."""


@dataclass(frozen=True, eq=False)
class LazyTensors(Tensors):
    """Tensors by name that `read` reads or computes each time they are asked for. Nothing is cached.

    `specs` has the specs of all tensors where they are known without reading them. `stream` gives the blocks of a
    tensor, as `blocks_of` does, where less than the whole tensor need be in memory for them. `places` says where
    tensors lie that may be one under several names.
    """

    names: tuple[str, ...]
    read: Callable[[str], torch.Tensor]
    specs: Specs = ()
    stream: Callable[[str], Iterator[torch.Tensor]] | None = None
    places: Mapping[str, Hashable] = field(default_factory=dict)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def known_specs(tensors: Tensors) -> Specs:
    """The specs of named tensors, which are read one by one where these are not known."""
    known = tensors.specs if isinstance(tensors, LazyTensors) else ()
    return known or specs_of(tensors.items())


def known_places(tensors: Tensors) -> Mapping[str, Hashable]:
    """Where named tensors lie: those of two names with one place are one tensor. Others need not have a place."""
    if isinstance(tensors, LazyTensors):
        return tensors.places
    return {name: memory_of(each) for name, each in tensors.items() if is_dense(each) and each.numel()}


def memory_of(tensor: torch.Tensor) -> Hashable:
    """Where a dense tensor lies, and how its elements are read there: two that have the same are one tensor."""
    read = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), read


def blocks_of(tensors: Tensors, name: str) -> Iterator[torch.Tensor]:
    """The elements of a tensor in order, in blocks (elements,) of `BLOCK` but for the last one.

    A block is to be used before the next one is asked for, which may take its memory.
    """
    if isinstance(tensors, LazyTensors) and tensors.stream:
        return tensors.stream(name)
    return iter(tensors[name].reshape(-1).split(BLOCK))


def picked(sources: Mapping[str, tuple[Tensors, str]]) -> LazyTensors:
    """Tensors under new names; `sources` says whose each is, and its name there."""
    origins = {id(tensors): tensors for tensors, _ in sources.values()}
    known = {key: {spec.name: spec for spec in known_specs(tensors)} for key, tensors in origins.items()}
    places = {key: known_places(tensors) for key, tensors in origins.items()}

    def read(name: str) -> torch.Tensor:
        tensors, own = sources[name]
        return tensors[own]

    return LazyTensors(
        tuple(sources),
        read,
        tuple(replace(known[id(tensors)][own], name=name) for name, (tensors, own) in sources.items()),
        lambda name: blocks_of(*sources[name]),
        {n: (id(t), places[id(t)][own]) for n, (t, own) in sources.items() if own in places[id(t)]},
    )


def changed(tensors: Tensors, specs: Specs, change: Callable[[str, torch.Tensor], torch.Tensor]) -> LazyTensors:
    """Tensors after a function of the elements, which gets a tensor's name and the tensor (*shape), or a block."""
    return LazyTensors(
        tuple(tensors),
        lambda name: change(name, tensors[name]),
        specs,
        lambda name: (change(name, block) for block in blocks_of(tensors, name)),
    )


def computed(specs: Specs, stream: Callable[[str], Iterator[torch.Tensor]]) -> LazyTensors:
    """Tensors whose blocks are computed one after the other, also where a whole tensor is asked for."""
    by_name = {spec.name: spec for spec in specs}

    def read(name: str) -> torch.Tensor:
        spec = by_name[name]
        tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
        for part, block in zip(tensor.reshape(-1).split(BLOCK), stream(name), strict=True):
            part.copy_(block)
        return tensor

    return LazyTensors(tuple(by_name), read, specs, stream)
