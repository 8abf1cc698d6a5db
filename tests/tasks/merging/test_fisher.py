"""The Fisher information of networks, by hand, and the mean that it weighs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import UsageError
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.own import Own
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.merging.fisher import check_likelihood, fisher_mean, fisher_of, of_drawn_labels
from roundweave.tasks.merging.gallery import Gallery, Samples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.networks.scores import AS_SHAPED, OWN_LOSS, LabelRule
from roundweave.tasks.own_code.code import find_code
from tests.tasks.merging import mine
from tests.tasks.merging.by_hand import lazy

WEIGHT = torch.tensor([[0.4, -0.1], [-0.4, 0.1]])


def information(
    folder, weight: torch.Tensor, data: str, loss: str, count: int = 3000
) -> tuple[dict, torch.Tensor]:
    """The Fisher information of the network `sparse`, and the inputs of its examples."""
    model = ModelSpec(
        find_code(f"{mine.__file__}:sparse"), (2,), 2, "float32", 0, json.dumps({"outputs": len(weight)})
    )
    partitions = Partitions(Own(find_code(f"{mine.__file__}:{data}")), Split(2), held_out=0.1)
    gallery = Gallery(partitions, count, Objective(model, loss), UnitGroups({}, (), {}, {}, {}, {}), str(folder))
    place = str(folder / "net.pt")
    write_checkpoint(place, {"head.weight": weight, "unread": torch.zeros(2), "statistic": torch.zeros(2)})
    samples = Samples(partitions, count)
    return fisher_of(gallery, [samples], [place], 0), samples.every_input.double()


def test_of_a_linear_softmax_network_by_hand(tmp_path) -> None:
    """The gradient of log p of label y is (1{k = y} - p_k) x for row k, whose mean square is p_k (1 - p_k) x^2."""
    found, inputs = information(tmp_path, WEIGHT, "two_inputs", "cross_entropy")
    p = (inputs @ WEIGHT.T.double()).softmax(1)
    wanted = ((p * (1 - p))[:, :, None] * inputs[:, None].square()).mean(0)
    torch.testing.assert_close(found["head.weight"], wanted, rtol=0.1, atol=0)  # labels are drawn, 3000 of them
    assert found["unread"].tolist() == [0, 0]
    assert "statistic" not in found


def test_of_a_network_that_knows_nothing_it_is_exact(tmp_path) -> None:
    """Both labels then have probability 1/2, and whichever is drawn, the square is x^2 / 4."""
    found, inputs = information(tmp_path, torch.zeros(2, 2), "two_inputs", "cross_entropy", 500)
    wanted = inputs.square().mean(0) / 4
    torch.testing.assert_close(found["head.weight"], wanted.expand(2, 2), rtol=1e-5, atol=0)
    again, _ = information(tmp_path, torch.zeros(2, 2), "two_inputs", "cross_entropy", 500)
    assert torch.equal(again["head.weight"], found["head.weight"])


def test_of_numbers_it_is_the_mean_square_of_the_outputs_gradient(tmp_path) -> None:
    found, inputs = information(tmp_path, WEIGHT[:1], "numbers", "mse")
    torch.testing.assert_close(found["head.weight"][0], inputs.square().mean(0), rtol=0.15, atol=0)


def test_labels_are_drawn_at_places_that_have_one_along_the_axis_of_classes() -> None:
    logits = torch.zeros(1, 3, 4)  # of three places and four classes
    labels = torch.tensor([[2, -100, 1]])
    generator = torch.Generator().manual_seed(0)
    for rule, drawn in ((AS_SHAPED, 2), (LabelRule(axis=-1, shifted=True), 1)):
        found = of_drawn_labels(logits, labels, rule, generator)
        assert found.item() == pytest.approx(-drawn * math.log(4))
    binary = LabelRule(threshold=0.0)
    found = of_drawn_labels(torch.zeros(2, 1), torch.tensor([0, 1]), binary, generator)
    assert found.item() == pytest.approx(-2 * math.log(2))


def test_each_element_is_weighted_by_its_information() -> None:
    states = [lazy({"w": torch.tensor([1.0, 1, 1]), "tied": torch.tensor([1.0, 1, 1]), "mean": torch.tensor(0.0)})]
    states.append(
        lazy({"w": torch.tensor([5.0, 5, 5]), "tied": torch.tensor([5.0, 5, 5]), "mean": torch.tensor(4.0)})
    )
    fishers = [{"w": torch.tensor([3.0, 0, 0])}, {"w": torch.tensor([1.0, 2, 0])}]
    found = fisher_mean(states, fishers, (1, 1), {"tied": "w"})
    assert found["w"].tolist() == pytest.approx([2, 5, 3])  # by 3:1, by 0:2, and the mean where none knows
    assert found["w"][2].item() == 3
    assert torch.equal(found["tied"], found["w"])
    assert found["mean"].item() == 2
    weighted = fisher_mean(states, fishers, (1, 3), {"tied": "w"})
    assert weighted["w"].tolist() == pytest.approx([3, 5, 4])


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e20])
def test_equal_information_gives_the_mean(size) -> None:
    states = [lazy({"w": torch.tensor([1.0, -2.0])}), lazy({"w": torch.tensor([5.0, 3.0])})]
    found = fisher_mean(states, [{"w": torch.tensor([size, size])}] * 2, (1, 3), {})
    assert found["w"].tolist() == pytest.approx([4.0, 1.75])


def test_hardly_any_information_weighs_as_more_does() -> None:
    states = [lazy({"w": torch.tensor([1.0])}), lazy({"w": torch.tensor([5.0])})]
    found = fisher_mean(
        states, [{"w": torch.tensor([each], dtype=torch.float64)} for each in (3e-44, 1e-44)], (1, 1), {}
    )
    assert found["w"].tolist() == pytest.approx([2.0])


def test_another_loss_is_refused(gallery) -> None:
    known = gallery()
    check_likelihood(known)
    own = replace(known, objective=replace(known.objective, loss=OWN_LOSS))  # and what it is of is not known
    with pytest.raises(UsageError, match="needs a loss of classes or of numbers, cross_entropy or mse, not model"):
        check_likelihood(own)
