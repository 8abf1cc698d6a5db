"""Copies of networks are those of `copy.deepcopy`, whatever modules hold and share: object by object."""

from __future__ import annotations

import copy
import copyreg
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from roundweave.storage.values.tensors import same_bits
from roundweave.tasks.networks.copying import copied_module

ATOMS = (int, float, str, bool, type(None), type, torch.dtype, torch.device)


def inside(value: Any) -> Iterator[tuple[object, Any]]:
    """What a value holds, by name or place."""
    match value:
        case dict():
            yield from value.items()
        case list() | tuple():
            yield from enumerate(value)
        case set():
            yield from enumerate(sorted(value, key=repr))
        case torch.Tensor():
            yield "grad", value.grad
            yield from vars(value).items()
        case _ if isinstance(value, nn.Module) or (hasattr(value, "__dict__") and not callable(value)):
            yield from vars(value).items()
            slots = [each for kind in type(value).__mro__ for each in getattr(kind, "__slots__", ())]
            yield from ((each, getattr(value, each)) for each in slots if hasattr(value, each))


def differing(given: Any, one: Any, other: Any) -> str | None:
    """The path of the first object that is another one in two copies of what is given; None where none is.

    Both are to share with it, and between their places, what the other shares.
    """
    left, seen = [("", given, one, other)], dict[object, Any]()
    while left:
        path, origin, first, second = left.pop(0)
        if id(first) in seen and seen[id(first)] is second:
            continue
        names = [list(dict(inside(each))) for each in (first, second)]
        if not alike(origin, first, second, seen) or names[0] != names[1]:
            return path
        if first is not origin:
            held = [dict(inside(each)) for each in (origin, first, second)]
            left += [(f"{path}.{name}", held[0].get(name), held[1][name], held[2][name]) for name in names[0]]
    return None


def alike(origin: Any, first: Any, second: Any, seen: dict[object, Any]) -> bool:
    """Whether two objects, but for what they hold, are alike. `seen` has counterparts by id, and of memory."""
    if type(first) is not type(second) or (first is origin) != (second is origin):
        return False
    if isinstance(first, ATOMS) or first is origin:
        return first is second or bool(first == second)
    if id(first) in seen or any(each is second for each in seen.values()):
        return False
    seen[id(first)] = second
    if not isinstance(first, torch.Tensor):
        return True
    places = [each.untyped_storage().data_ptr() for each in (first, second)]
    one_memory = seen.setdefault(("memory", places[0]), places[1]) == places[1]
    return one_memory and same_bits(first, second) and first.requires_grad == second.requires_grad


class Holding(nn.Module):
    """A layer, and whatever is given."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        for name, value in attributes.items():
            setattr(self, name, value)


def tied() -> nn.Module:
    layer = nn.Linear(2, 2)
    network = nn.Sequential(layer, nn.Linear(2, 2), layer)
    network[1].weight = layer.weight
    return network


def one_empty_dict_of_two() -> nn.Module:
    both: dict[str, Any] = {}
    return nn.Sequential(Holding(both=both), Holding(both=both))


def parent_of_its_child() -> nn.Module:
    network = nn.Sequential(Holding())
    object.__setattr__(network[0], "parent", network)
    return network


def buffers_over_one_memory() -> nn.Module:
    network = Holding()
    network.register_buffer("whole", torch.arange(4.0), persistent=False)
    network.register_buffer("part", network.whole[:2], persistent=False)
    return network


def hooked_network() -> nn.Module:
    network = nn.Sequential(nn.Linear(2, 2))
    network[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return network


def ones_of(kind: type[nn.Linear]) -> Any:
    """Another one, of three outputs."""
    new = kind(2, 3)
    for parameter in new.parameters():
        nn.init.ones_(parameter)
    return new


class OwnCopy(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> OwnCopy:
        return ones_of(OwnCopy)


class OwnState(nn.Linear):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "restored": True})


class Slotted(nn.Linear):
    __slots__ = ("extra",)


def slotted() -> nn.Module:
    network = nn.Sequential(Slotted(2, 2))
    network[0].extra = [1]
    return network


class Registered(nn.Linear):
    """Copied as `copyreg` says."""


def of_registered(module: Registered) -> tuple[Any, ...]:
    return ones_of, (Registered,)


copyreg.pickle(Registered, of_registered)  # type: ignore[arg-type]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2, bias=False)),
    "half trained": lambda: nn.Sequential(nn.Linear(2, 2).eval(), nn.Linear(2, 2).requires_grad_(False)),
    "tied": tied,
    "one empty dict of two": one_empty_dict_of_two,
    "attributes": lambda: Holding(sizes=[1, 2], names={"a"}, options=OrderedDict(a=[1]), kind=torch.int8),
    "a tensor as attribute": lambda: Holding(cache=torch.ones(2)),
    "parent of its child": parent_of_its_child,
    "buffers over one memory": buffers_over_one_memory,
    "hooked": hooked_network,
    "parametrised": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2))),
    "own copy": lambda: nn.Sequential(OwnCopy(2, 2)),
    "own state": lambda: nn.Sequential(OwnState(2, 2)),
    "slotted": slotted,
    "registered": lambda: nn.Sequential(Registered(2, 2)),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 4),
    "no layer": lambda: Holding(layer=None),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_has_and_shares_what_that_of_deepcopy_does(name: str) -> None:
    network = NETWORKS[name]()

    def memo() -> dict[int, Any]:
        """As maps give it: parameters that are there already."""
        return {id(each): given[name] for name, each in network.named_parameters()}

    given = {name: nn.Parameter(each.detach() + 1) for name, each in network.named_parameters()}
    for made in (dict, memo):
        assert differing(network, copy.deepcopy(network, made()), copied_module(network, made())) is None


def test_what_differs_is_noticed() -> None:
    network = one_empty_dict_of_two()
    other = copied_module(network, {})
    assert differing(network, copy.deepcopy(network), network) is not None
    other[1].both = {}
    assert differing(network, copy.deepcopy(network), other) == "._modules.1.both"
