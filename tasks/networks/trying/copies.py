"""Tries whether the networks that maps train are the one that the user's function makes, and what forward changes.

A map copies a network and puts views of a state's vectors in the places of its tensors. What closures, hooks,
scripts or weak references of a network hold does not follow a copy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import nn

from roundweave.storage.errors import ModelError, one_line
from roundweave.storage.values.tensors import differences, let_go, same_bits
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import Objective, named_tensors, network_tensors
from roundweave.tasks.networks.outputs import tensors_in
from roundweave.tasks.networks.trying.purity import count_on
from roundweave.tasks.numerics.pinning import derive_seed, pinned
from roundweave.tasks.numerics.unofficial import spectral_norms

Numbers = Mapping[str, torch.Tensor]
"""Tensors (*shape) by what they are, such as ``output 0`` or ``gradient of fc1.weight``."""


TRAINING_ONLY = "scores would depend on the order of examples, so change it `if self.training`"
"""What to do about a network that evaluation changes."""


@dataclass(frozen=True)
class Observed:
    """What a network gives for examples, in evaluation and in training.

    `changed` has the tensors that a forward pass in training changes, by name, as they are after it. `again` has
    the numbers of further passes in each mode, which are those of the first if nothing is kept but tensors.
    `scored` are the names of tensors that evaluation changes, other than trained parameters.
    """

    numbers: Numbers
    changed: Numbers
    again: Numbers
    scored: tuple[str, ...]


@dataclass(frozen=True)
class Passes:
    """Passes over `examples` from the tensors `start`, (*shape) by name.

    If `scattered`, they begin from other weights, as what does not follow a copy still has the initial ones.
    """

    objective: Objective
    examples: Examples
    start: Numbers
    scattered: bool = True

    def __call__(self, network: nn.Module) -> Observed:
        """Observe a network."""
        for name, tensor in network_tensors(network).items():
            if name in self.start:
                tensor.data.copy_(self._value(name))
        spaces = [vars(module) for module in network.modules()]
        before, numbers = [dict(space) for space in spaces], self._scored(network)
        trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
        scored = tuple(self._restored(network).keys() - trained)
        numbers |= self._trained(network)
        changed = self._restored(network)
        count_on(spaces, before)
        again = self._trained(network)
        self._restored(network)
        return Observed(numbers, changed, again | self._scored(network), scored)

    def _restored(self, network: nn.Module) -> Numbers:
        """Let a network's tensors be as in the beginning, and return copies of those that were not."""
        now = network_tensors(network)
        changed = {name: now[name] for name in self.start if not same_bits(now[name], self._value(name))}
        copies = {name: tensor.detach().clone() for name, tensor in changed.items()}
        for name, tensor in changed.items():
            tensor.data.copy_(self._value(name))
        return copies

    def _value(self, name: str) -> torch.Tensor:
        """Return the value that a tensor begins with.

        If scattered, tensors that begin alike have values of their own.
        """
        tensor, share = self.start[name], 1 / 8 + derive_seed(name) % 1024 / 8192
        if self.scattered and tensor.is_floating_point():
            tensor = tensor * (1 + share) + share / 8
            tensor.view(-1)[::2] *= 1 + share  # a norm behind a layer would hide one factor
        return tensor

    def _scored(self, network: nn.Module) -> dict[str, torch.Tensor]:
        """Return the outputs of a pass in evaluation."""
        with in_evaluation(network), torch.no_grad():
            return self._outputs(network, " in evaluation")

    def _trained(self, network: nn.Module) -> dict[str, torch.Tensor]:
        """Return the outputs of a pass in training, and the norms of its gradients."""
        parameters = dict(network.named_parameters())
        numbers = self._outputs(network)
        _backward([*numbers.values()])
        numbers |= {f"gradient of {n}": p.grad.norm() for n, p in parameters.items() if p.grad is not None}
        network.zero_grad()
        return {name: tensor.detach() for name, tensor in numbers.items()}

    def _outputs(self, network: nn.Module, mode: str = "") -> dict[str, torch.Tensor]:
        with pinned(0, threads=1, fill=True):
            outputs = tensors_in(self.objective.outputs(network, self.examples.inputs, self.examples.targets))
        real = (torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in outputs)
        return {f"output {number}{mode}": output for number, output in enumerate(real)}


@contextmanager
def in_evaluation(network: nn.Module) -> Iterator[None]:
    """A context in which a network is in evaluation mode; afterwards each module is in the mode it was in."""
    with ExitStack() as stack:
        for module in network.modules():
            stack.callback(setattr, module, "training", module.training)
        network.eval()
        yield


def check_apart(objective: Objective, network: nn.Module, other: nn.Module) -> None:
    """Raise `ModelError` if two networks that the model's function made have memory in common."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in network_tensors(other).values() if tensor.numel()}
    for name, tensor in network_tensors(network).items():
        if tensor.numel() and tensor.untyped_storage().data_ptr() in memory:
            raise ModelError(
                f"model {objective.model.name} gives the same {name} each time that it is called, so that one "
                "network would change another; make all of the network in the function"
            )


def tried_network(objective: Objective, network: nn.Module, examples: Examples) -> Objective:
    """The objective with `anew`, `rewritten` and its model's `moving` decided by passes of a network of its model.

    The network is of no use afterwards. Raises `ModelError` if maps would train another network than this one, or
    if it keeps something from one forward pass to the next that no state holds.
    """
    layout, state = objective.layout, objective.packed(network_tensors(network))
    start = named_tensors(layout, state.params, state.buffers, state.frozen)
    try:
        passes, wanted = _observed(Passes(objective, examples, start), network)
    except Exception:
        if _fails(objective, network, examples):  # a map that fails so is refused by name, and others may not
            return objective
        raise
    if new := sorted({*network.state_dict()} - {*objective.built.state_dict()}):
        raise ModelError(f"model {objective.model.name} makes {new[0]} in forward; make it in the function")
    if wanted.scored:
        raise ModelError(
            f"model {objective.model.name}: forward changes {wanted.scored[0]} in evaluation, too; {TRAINING_ONLY}"
        )
    if unlike := unlike_numbers(wanted.numbers, wanted.again):
        raise ModelError(
            f"model {objective.model.name}: a second forward pass on the same examples gives another {unlike[0]}; "
            "register what it keeps from pass to pass as persistent buffers, and draw from generators of torch, "
            "numpy or random that are seeded"
        )
    _check_gradients(objective, network, examples, wanted)
    moving = tuple(spec.name for spec in layout.frozen if spec.name in wanted.changed)
    spectral = any(True for _ in spectral_norms(network))
    rewritten = _rewritten(network, wanted.changed)
    for name, tensor in network_tensors(network).items():
        if name in start:
            tensor.data.copy_(start[name])  # the function may give others the same memory
        let_go(tensor)
    for tried in (objective, replace(objective, anew=True)):
        if not (unlike := _unlike(tried, passes, wanted)):
            model = replace(tried.model, moving=moving)
            return replace(tried, rewritten=rewritten, spectral=spectral, model=model)
    raise ModelError(
        f"model {objective.model.name}: maps would train another network than this function makes, with another "
        f"{', '.join(unlike[:3])}; hold layers and tensors as attributes, and draw from seeded generators"
    )


def _check_gradients(objective: Objective, network: nn.Module, examples: Examples, wanted: Observed) -> None:
    """Raise `ModelError` if nothing gets a gradient, or something gets none as a checkpoint of torch cuts it off.

    What else gets none, such as a layer that forward leaves out, stays as it is in a plain loop, too.
    """
    params = [spec.name for spec in objective.layout.params]
    if not (lacking := [name for name in params if f"gradient of {name}" not in wanted.numbers]):
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "None of the inputs have requires_grad")  # as `checkpoint` says
        cut = _fails(objective, network, examples)
    if cut or (lacking == params and wanted.numbers):  # none are of outputs that are hidden in objects
        advice = "call torch's checkpoint with use_reentrant=False" if cut else "leave out no_grad and detach"
        raise ModelError(f"model {objective.model.name}: {lacking[0]} gets no gradient; {advice}")


def _fails(objective: Objective, network: nn.Module, examples: Examples) -> bool:
    """Tell whether a network raises in training."""
    with suppress(Exception), pinned(0, threads=1, fill=True):
        objective.outputs(network, examples.inputs, examples.targets)
        return False
    return True


def _observed(passes: Passes, network: nn.Module) -> tuple[Passes, Observed]:
    """Return what a network gives, and the passes that show it: not scattered if they fail so, or give NaN."""
    with suppress(Exception):
        observed = passes(network)
        if not any(tensor.isnan().any() for tensor in observed.numbers.values()):
            return passes, observed
    passes = replace(passes, scattered=False)
    return passes, passes(network)


def _unlike(objective: Objective, passes: Passes, wanted: Observed) -> list[str]:
    """Return what differs from the wanted numbers in a network as maps have it."""
    try:
        network = objective.over(objective.packed(passes.start))
        given = passes(network)
    except Exception as error:  # noqa: BLE001 - a copy that lacks something may raise anything
        return [f"end: {one_line(error)}"]
    if objective.anew:
        check_apart(objective, network, objective.model.build())
    return unlike_numbers({**wanted.numbers, **wanted.changed}, {**given.numbers, **given.changed})


def unlike_numbers(some: Numbers, others: Numbers) -> list[str]:
    """Return the names of numbers that differ by more than rounding at the scale of their kind.

    An absent one is 0.
    """
    scales: dict[str, float] = {}
    for name, tensor in some.items():
        kind, finite = name.partition(" ")[0], tensor.double().nan_to_num(0.0, 0.0, 0.0)
        scales[kind] = max(scales.get(kind, 0.0), finite.abs().max().item() if finite.numel() else 0.0)

    def rounding(name: str) -> float:
        if not (dtype := zeros[name].dtype).is_floating_point:
            return -1.0  # every difference is more
        return scales.get(name.partition(" ")[0], 0.0) * math.sqrt(torch.finfo(dtype).eps)

    zeros = {name: torch.zeros_like(tensor) for name, tensor in {**some, **others}.items()}
    found = differences({**zeros, **some}, {**zeros, **others})
    return [name for name, apart in found if apart is None or apart > rounding(name)]


def _backward(outputs: Sequence[torch.Tensor]) -> None:
    """Backprop of the sum of outputs (*shape) with random coefficients."""
    generator = torch.Generator().manual_seed(1)
    trained = [output for output in outputs if output.requires_grad]
    sums = [(output * torch.randn(output.shape, generator=generator).to(output)).sum() for output in trained]
    if sums:
        sum(sums[1:], sums[0]).backward()  # of several tensors at once it would take a second to import


def _rewritten(network: nn.Module, changed: Collection[str]) -> tuple[str, ...]:
    """The trained parameters that a forward pass changes itself, as those of an embedding with a largest norm."""
    bounded = {id(module.weight) for module in network.modules() if getattr(module, "max_norm", None) is not None}
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    return tuple(name for name, parameter in trained if name in changed or id(parameter) in bounded)
