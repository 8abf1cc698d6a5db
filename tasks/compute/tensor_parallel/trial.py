"""Try whether ranks that share a network compute what the whole network does, in training and in scoring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError, failing_as, one_line
from roundweave.storage.values.state import State
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.compute.tensor_parallel.networks import ShareObjective
from roundweave.tasks.compute.tensor_parallel.one_process import as_ranks
from roundweave.tasks.compute.tensor_parallel.shares import Shares
from roundweave.tasks.matching.check import TOLERANCE, randomise
from roundweave.tasks.matching.unofficial import TorchDispatchMode, tensors_in
from roundweave.tasks.networks.objective import Objective, named_tensors
from roundweave.tasks.numerics.pinning import pinned

LARGE = 8.0
"""The factor of the larger parameters that are tried, too, as they reach operations that clip or saturate."""

Numbers = dict[str, dict[str, torch.Tensor]]
"""Tensors of a step by kind, such as ``output``, and name."""


def is_sound(objective: Objective, inputs: torch.Tensor, shares: Shares) -> bool:
    """Whether a step of the ranks on inputs (example, *) is that of the whole network.

    It tries the network's own parameters, random ones, and larger ones. Raises `ModelError` if the whole network
    cannot compute in float64.
    """
    return all(difference(objective, inputs, shares, state) is None for state in _states(objective))


def _states(objective: Objective) -> Iterator[State]:
    yield objective.initial()
    network = objective.fresh()
    randomise(network, torch.Generator().manual_seed(0))
    random = objective.packed(dict([*network.named_parameters(), *network.named_buffers()]))
    yield random
    yield replace(random, params={name: LARGE * vector for name, vector in random.params.items()})


def difference(objective: Objective, inputs: torch.Tensor, shares: Shares, state: State) -> str | None:
    """What differs between a step of the ranks and one of the whole network, from a state; None if nothing does.

    The steps are in float64, on inputs (example, *). It compares outputs and buffers in training, the gradients of
    randomly weighted outputs, and outputs in scoring, up to rounding. Ranks draw other random numbers than the
    whole network, so all random numbers are replaced by one constant; it only compares that all ranks draw equally
    many where they should draw the same. If the whole network gives numbers that are not finite, nothing can be
    said, and the result is None.
    """
    doubled, state, batch = _doubled(objective, state, inputs)
    shares = replace(shares, layout=doubled.layout)
    what = f"{type(doubled.built).__name__} cannot be tried in float64"
    failing = failing_as(lambda error: ModelError(f"{what}: {one_line(error)}"))
    with failing, pinned(0, torch.get_num_threads()):
        whole = _numbers(doubled.network(state), batch)

    def of_rank(group: Communicator) -> tuple[Numbers, torch.Tensor]:
        share = ShareObjective.of(doubled, shares, group, apart=True)
        return _numbers(share.network(shares.state(state, group.rank)), batch), torch.get_rng_state()

    with pinned(0, torch.get_num_threads()):
        try:
            parts, generators = zip(*as_ranks(shares.ranks, of_rank), strict=True)
        except Exception as error:  # noqa: BLE001 - a network that counts its units may raise anything on a share
            return f"a step of a share fails with {one_line(error)}"
    if not all(torch.equal(generators[0], other) for other in generators):
        return "ranks draw unlike many random numbers"
    return _differing(shares, whole, parts)


def _differing(shares: Shares, whole: Numbers, parts: Sequence[Numbers]) -> str | None:
    if not all(tensor.isfinite().all() for numbers in whole.values() for tensor in numbers.values()):
        return None
    for kind, numbers in whole.items():
        # A gradient may really be zero, so the scale is that of all tensors of its kind.
        scale = max((tensor.abs().max().item() for tensor in numbers.values() if tensor.numel()), default=0.0)
        most = TOLERANCE * scale
        for name, tensor in numbers.items():
            for rank, part in enumerate(parts):
                share, here = shares.share(name, tensor, rank), part[kind].get(name)
                if here is None or here.shape != share.shape or not ((here - share).abs() <= most).all():
                    return f"{kind} {name} is another one on rank {rank}"
    return None


def _doubled(objective: Objective, state: State, inputs: torch.Tensor) -> tuple[Objective, State, torch.Tensor]:
    """The objective, the state and the inputs, converted to float64."""
    doubled = replace(objective, model=replace(objective.model, dtype="float64"))
    tensors = named_tensors(objective.layout, state.params, state.buffers, state.frozen)
    whole = doubled.packed({name: tensor.double() for name, tensor in tensors.items()})
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return doubled, replace(whole, round=state.round), inputs


class _Alike(TorchDispatchMode):
    """Replaces all random numbers by one constant, so that it does not matter which or how many are drawn."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and isinstance(drawn, torch.Tensor):
            drawn.fill_(0.5) if drawn.is_floating_point() else drawn.zero_()
        return drawn


def _numbers(network: nn.Module, inputs: torch.Tensor) -> Numbers:
    """The outputs, gradients and buffers of a step on inputs (example, *), and the outputs in scoring."""
    generator = torch.Generator().manual_seed(1)
    with _Alike():
        outputs = tensors_in(network(inputs))
    weights = [torch.randn(leaf.shape, generator=generator).to(leaf) for leaf in outputs]
    with _Alike():
        torch.stack(
            [(leaf * weight).sum() for leaf, weight in zip(outputs, weights, strict=True)]
        ).sum().backward()
    with torch.no_grad():
        scored = tensors_in(network.eval()(inputs))
    return {
        "output": {str(number): leaf.detach() for number, leaf in enumerate(outputs)},
        "gradient of": {name: p.grad for name, p in network.named_parameters() if p.grad is not None},
        "buffer": {name: buffer.double() for name, buffer in network.named_buffers()},
        "output in scoring": {str(number): leaf for number, leaf in enumerate(scored)},
    }
