"""Batches of held-out examples follow from their size alone, and a score has the same bits whoever scores them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from roundweave import Dataset, Examples, Partitions, Split
from roundweave.storage.rounds.commits import Score
from roundweave.tasks.data.loading import LoadedExamples, score_batch
from roundweave.tasks.data.reading import Loading, Reading
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.rounds.scoring import Tally, score, tally


class Held:
    """Examples of noise with some labels, of which so many are held out."""

    partitioned = False

    def __init__(self, count: int, width: int = 20) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(count, width, generator=generator)
        self.targets = torch.randint(3, (count,), generator=generator)

    def load(self, partition: int, partitions: int) -> Dataset:
        return Dataset(Examples(self.inputs[:40], self.targets[:40]), Examples(self.inputs, self.targets))


@pytest.mark.parametrize(
    ("width", "dtype", "batch"),
    [
        (784, torch.float32, 512),  # 3,144 bytes with the label
        (1300, torch.float32, 402),  # 5,208 bytes: 402.67 of them
        (1300, torch.float64, 201),  # 10,408 bytes
        (150_528, torch.float32, 128),  # 602,120 bytes: three of them have 2 MiB
        (0, torch.float32, 512),
    ],
)
def test_a_batch_has_two_mebibytes_and_128_to_512_examples(width: int, dtype: torch.dtype, batch: int) -> None:
    examples = Examples(torch.zeros(3, width, dtype=dtype), torch.zeros(3, dtype=torch.int64))
    assert score_batch(examples) == score_batch(examples.first(1)) == batch
    assert score_batch(examples.first(0)) == 512  # nobody asks how many of none are scored at once


def test_inputs_by_name_count_together_and_examples_that_are_read_where_they_are_used_are_scored_by_128() -> None:
    halves = {"a": torch.zeros(2, 650), "b": torch.zeros(2, 650)}
    assert score_batch(Examples(halves, torch.zeros(2, dtype=torch.int64))) == 402
    reading = Reading(Held(9), None, None, True, Loading(), "float32")
    assert score_batch(LoadedExamples(reading, np.arange(2))) == 128


def scored(scorers: int, count: int = 1300) -> Score | None:
    """The score of a network that is drawn from a seed, on examples of which each scorer has a part."""
    objective = Objective(ModelSpec("mlp", (20,), 3, "float32", 5), "cross_entropy", ("accuracy",))
    partitions = Partitions(Held(count), Split(1))
    with torch.no_grad():
        network = objective.fresh().eval()
        parts = [partitions.held_out_part(0, place, scorers) for place in range(scorers)]
        tallies = [each for part in parts for each in tally(objective, network, part)]
    assert [each.examples for each in tallies] == [512, 512, 276]
    return score(objective, tallies, 1)


def test_a_score_is_the_mean_over_all_examples_with_the_same_bits_whoever_scores() -> None:
    """Of 1300 examples, in three batches, by one, by as many as there are batches, and by more."""
    alone = scored(1)
    assert alone is not None
    assert alone.examples == 1300
    assert all(scored(scorers) == alone for scorers in (2, 3, 50))
    objective = Objective(ModelSpec("mlp", (20,), 3, "float32", 5), "cross_entropy", ("accuracy",))
    data = Held(1300)
    with torch.no_grad():
        outputs = objective.fresh().double().eval()(data.inputs.double())
    assert alone.loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, data.targets).item(), rel=1e-6)
    assert alone.values["accuracy"] == (outputs.argmax(1) == data.targets).double().mean().item()


# Examples without a finite loss.

JUDGED = Objective(ModelSpec("linear", (2,), 2, "float32", seed=0), "cross_entropy", ("accuracy",))


def test_an_example_without_a_finite_loss_is_left_out_of_the_loss_alone() -> None:
    """Three examples, of which the second has an infinite loss and is read right, and four sound ones."""
    tallies = [Tally(3, {"loss": (1.5, 2), "accuracy": (2, 3)}, left_out=1)]
    tallies += [Tally(4, {"loss": (3.0, 4), "accuracy": (2, 4)}), Tally(2, left_out=2)]
    assert score(JUDGED, tallies, 1) == Score(0.75, {"accuracy": 4 / 7}, 6, 3)
    assert score(JUDGED, tallies[2:], 1) is None
    assert score(JUDGED, [], 1) is None


def test_only_examples_whose_numbers_are_infinite_are_left_out() -> None:
    """Logits of 200 examples, of which number 7 gives its label no chance, and number 9 is no number."""
    logits = torch.zeros(200, 2)
    logits[:130, 0], logits[7, 1], logits[9] = 1.0, math.inf, math.nan
    logits[7, 0] = -math.inf
    held_out = Examples(logits, torch.zeros(200, dtype=torch.long))
    network = torch.nn.Identity()
    network.scale = torch.nn.Parameter(torch.ones(()))
    scored = score(JUDGED, tally(JUDGED, network, held_out), 1)
    sure, even = math.log(1 + math.exp(-1)), math.log(2)
    assert scored.loss == pytest.approx((128 * sure + 70 * even) / 198)
    assert scored.values == {"accuracy": pytest.approx(198 / 199)}
    assert (scored.examples, scored.left_out) == (198, 2)
