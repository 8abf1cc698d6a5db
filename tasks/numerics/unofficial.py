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
from torch.utils._pytree import tree_leaves


def nested_tensors(values: object) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts, and in output classes that libraries register with torch."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def hooked(new: nn.Parameter, old: nn.Parameter) -> nn.Parameter:
    """Add the hooks of a parameter to its copy, as torch copies parameters without hooks; returns the copy."""
    for hook in (old._backward_hooks or {}).values():
        new.register_hook(hook)
    for hook in (old._post_accumulate_grad_hooks or {}).values():
        new.register_post_accumulate_grad_hook(hook)
    return new


def spectral_norms(network: nn.Module) -> Iterator[tuple[nn.Module, list[torch.Tensor], Callable[[], object]]]:
    """Yield a network's spectral norms: the module to train, its two vectors, and a step of their iteration."""
    for module in network.modules():
        for name, parts in getattr(module, "parametrizations", {}).items():
            for part in parts:
                if isinstance(part, _SpectralNorm) and hasattr(part, "_u"):  # a vector's norm needs no iteration
                    yield part, [part._u, part._v], partial(getattr, module, name)
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                yield (
                    module,
                    [getattr(module, hook.name + each) for each in ("_u", "_v")],
                    partial(hook, module, ()),
                )
