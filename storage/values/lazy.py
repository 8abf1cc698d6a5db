"""Named tensors that are read or computed on demand, whole or a block of elements at a time."""

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
    """Tensors by name that `read` reads or computes on each access. Nothing is cached.

    `specs` has the specs of all tensors if they are known without reading. `stream` gives the blocks of a tensor,
    as `blocks_of` does, if less than the whole tensor need be in memory for them. `places` says where tensors lie
    that may be one under several names.
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
    """Return the specs of named tensors. If they are not known, the tensors are read one by one."""
    known = tensors.specs if isinstance(tensors, LazyTensors) else ()
    return known or specs_of(tensors.items())


def known_places(tensors: Tensors) -> Mapping[str, Hashable]:
    """Return where named tensors lie. Two names with one place are one tensor. Others need not have a place."""
    if isinstance(tensors, LazyTensors):
        return tensors.places
    return {name: memory_of(each) for name, each in tensors.items() if is_dense(each) and each.numel()}


def memory_of(tensor: torch.Tensor) -> Hashable:
    """Return where a dense tensor lies, and how its elements are read. Two equal answers are one tensor."""
    read = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), read


def blocks_of(tensors: Tensors, name: str) -> Iterator[torch.Tensor]:
    """Yield the elements of a tensor in order, in blocks (element,) of `BLOCK`; the last may be shorter.

    Use a block before you ask for the next one, which may take its memory.
    """
    if isinstance(tensors, LazyTensors) and tensors.stream:
        return tensors.stream(name)
    return iter(tensors[name].reshape(-1).split(BLOCK))


def picked(sources: Mapping[str, tuple[Tensors, str]]) -> LazyTensors:
    """Return tensors under new names. `sources` has the tensors and the old name behind each new name."""
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
    """Return tensors after a function of the elements, given a name and the tensor ``(*shape)``, or a block."""
    return LazyTensors(
        tuple(tensors),
        lambda name: change(name, tensors[name]),
        specs,
        lambda name: (change(name, block) for block in blocks_of(tensors, name)),
    )


def computed(specs: Specs, stream: Callable[[str], Iterator[torch.Tensor]]) -> LazyTensors:
    """Return tensors whose blocks are computed one after the other, also for a whole tensor."""
    by_name = {spec.name: spec for spec in specs}

    def read(name: str) -> torch.Tensor:
        spec = by_name[name]
        tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
        for part, block in zip(tensor.reshape(-1).split(BLOCK), stream(name), strict=True):
            part.copy_(block)
        return tensor

    return LazyTensors(tuple(by_name), read, specs, stream)
