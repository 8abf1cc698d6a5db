"""Everything that networks use of torch without its documentation; it works with torch 2.14.1.

The tests of this module fail, and name what is missing, if a later version no longer has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm


def hooked(new: nn.Parameter, old: nn.Parameter) -> nn.Parameter:
    """Add the hooks of a parameter to its copy, as torch copies parameters without hooks; returns the copy."""
    for hook in (old._backward_hooks or {}).values():
        new.register_hook(hook)
    for hook in (old._post_accumulate_grad_hooks or {}).values():
        new.register_post_accumulate_grad_hook(hook)
    return new


def first_of_permutation(count: int, first: int, seed: int) -> torch.Tensor:
    """Return the ``first`` numbers, (first,), of ``torch.randperm(count)`` by a generator with this seed.

    The others are not drawn, so the time it takes does not grow with `count`.
    """
    generator = torch.Generator().manual_seed(seed)
    if count >= (1 << 32) // 20:  # torch draws so many in another way
        return torch.randperm(count, generator=generator)[:first]
    # A number of 64 bits is two draws of the generator, of which the first is its higher half.
    pairs = torch.empty((first + 1) // 2, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    draws = [half % (1 << 32) for pair in pairs.tolist() for half in (pair >> 32, pair)]
    placed: dict[int, int] = {}
    for place, draw in zip(range(first), draws, strict=False):
        other = place + draw % (count - place)
        placed[place], placed[other] = placed.get(other, other), placed.get(place, place)
    return torch.tensor([placed[place] for place in range(first)])


def spectral_norms(network: nn.Module) -> Iterator[tuple[nn.Module, list[torch.Tensor], Callable[[], object]]]:
    """Yield a network's spectral norms: the module to train, its two vectors, and a step of their iteration."""
    for module in network.modules():
        for name, parts in getattr(module, "parametrizations", {}).items():
            for part in parts:
                if isinstance(part, _SpectralNorm) and hasattr(part, "_u"):  # a vector's norm needs no iteration
                    yield part, [part._u, part._v], partial(getattr, module, name)
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                vectors = [getattr(module, hook.name + each) for each in ("_u", "_v")]
                yield module, vectors, partial(hook, module, ())
