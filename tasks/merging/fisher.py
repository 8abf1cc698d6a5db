"""Fisher merging: each network's parameters count by how much its own examples tell of them.

Source: Matena & Raffel 2022, Merging Models with Fisher-Weighted Averaging, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from roundweave.storage.errors import ModelError, UsageError, failing_as, located
from roundweave.storage.values.lazy import LazyTensors
from roundweave.tasks.data.examples import IGNORED, Examples
from roundweave.tasks.matching.averaging import averaging
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.gallery import Gallery, Samples
from roundweave.tasks.networks.outputs import call, output_of
from roundweave.tasks.networks.scores import LabelRule, class_axis
from roundweave.tasks.numerics.pinning import derive_seed, pinned

FLOOR = 1e-6
"""The least information that counts, as a part of the mean of a tensor's in all networks and elements."""


def check_likelihood(gallery: Gallery) -> None:
    """Raise `UsageError` unless outputs are logits of classes or numbers, whose likelihood is known."""
    if gallery.ensemble_loss not in ("cross_entropy", "mse"):
        loss = gallery.objective.loss
        given = loss if isinstance(loss, str) else loss.reference
        raise UsageError(
            f"average fisher needs a loss of classes or of numbers, cross_entropy or mse, not {given}"
        )


def fisher_of(
    gallery: Gallery, own: Sequence[Samples], places: Sequence[str], number: int
) -> dict[str, torch.Tensor]:
    """Return the diagonal of one network's Fisher information by parameter: (*shape), float64.

    It is the mean over examples of its own of the squared gradient of the log-likelihood of a target, which is
    drawn by the seed from what the network itself predicts. A parameter that no example reaches has 0.
    """
    samples, network = own[number], gallery.network(gallery.read(places[number]))
    floats = {name: each for name, each in network.named_parameters() if each.is_floating_point()}
    parameters = [each.requires_grad_() for each in floats.values()]
    # In float32 the squares of a confident network's gradients would be 0.
    sums = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in floats.items()}
    generator = torch.Generator().manual_seed(derive_seed(samples.partitions.split.seed, "fisher", number))
    examples = [each for block in samples.blocks for each in samples.drawn(block).slices(1)]
    with pinned(0, threads=1), failing_as(lambda error: ModelError(f"average fisher fails with {located(error)}")):
        for example in examples:
            likelihood = _likelihood(gallery, network, example, generator)
            gradients = torch.autograd.grad(likelihood, parameters, allow_unused=True)
            for total, gradient in zip(sums.values(), gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient.to(total.dtype).square())
    return {name: total / len(examples) for name, total in sums.items()}


def _likelihood(
    gallery: Gallery, network: nn.Module, example: Examples, generator: torch.Generator
) -> torch.Tensor:
    """Return the log-likelihood, (), of a drawn target of one example, but for a constant."""
    outputs = output_of(call(network, example.inputs))
    if gallery.is_classifier:
        return of_drawn_labels(outputs, example.targets, gallery.objective.rule, generator)
    # Of numbers that are normally distributed around the outputs, with variance 1.
    return (torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype) * outputs).sum()


def of_drawn_labels(
    outputs: torch.Tensor, targets: torch.Tensor, rule: LabelRule, generator: torch.Generator
) -> torch.Tensor:
    """Return the log-likelihood, (), of labels that are drawn from the softmax of logits (examples, *).

    Targets (examples, *) say only which axis is that of classes, and which places have a label.
    """
    logits, labels = rule(outputs, targets)
    axis = 1 if labels.is_floating_point() else class_axis(logits, labels)
    assert axis is not None  # the parents were tried on their examples before
    rows = logits.movedim(axis, -1).flatten(0, -2)
    rows = rows if labels.is_floating_point() else rows[labels.flatten() != IGNORED]
    drawn = rows.detach().softmax(-1).multinomial(1, generator=generator)[:, 0]
    return -functional.cross_entropy(rows, drawn, reduction="sum")


def fisher_mean(
    states: Sequence[LazyTensors],
    fishers: Sequence[Tensors],
    coefficients: Sequence[float],
    aliases: Mapping[str, str],
) -> LazyTensors:
    """The mean of aligned networks, each element weighted by the coefficient times the network's information.

    Less than `FLOOR` counts as that much, so elements of which no network knows anything take the plain mean, and
    so do buffers. Of tied tensors, which `aliases` has, the first has the information.
    """
    averaged = averaging(states, coefficients)

    def read(name: str) -> torch.Tensor:
        if (first := aliases.get(name, name)) not in fishers[0]:
            return averaged(name)
        known = torch.stack([fisher[first] for fisher in fishers]).double()
        known = known.clamp_min(FLOOR * known.mean().item() or 1)
        weights = torch.stack([c * each for c, each in zip(coefficients, known, strict=True)])
        values = torch.stack([state[name].to(known.dtype) for state in states])
        return ((weights * values).sum(0) / weights.sum(0)).to(states[0][name].dtype)

    return LazyTensors(states[0].names, read, states[0].specs)
