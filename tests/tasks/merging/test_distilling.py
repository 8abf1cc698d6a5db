"""Distillation: a student comes to give what each teacher gives on the teacher's inputs."""

from __future__ import annotations

import copy
from itertools import repeat

import pytest
import torch
from torch import nn
from torch.nn import functional

from roundweave.storage.errors import ModelError, UsageError
from roundweave.tasks.merging.distilling import Teaching, distil, write_distilled
from roundweave.tasks.merging.gallery import Samples
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging.by_hand import same_bits


def linear(*weights: float) -> nn.Linear:
    layer = nn.Linear(len(weights), 1, bias=False)
    layer.weight.data[:] = torch.tensor(weights)
    return layer


def test_each_teacher_teaches_what_its_inputs_show() -> None:
    # One teacher sees only the first input, the other only the second; the student has to learn both.
    teachers, student = [linear(2.0, 9.0), linear(9.0, -1.0)], linear(0.0, 0.0)
    inputs = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    distil(student, teachers, [repeat(each, 500) for each in inputs], 500, 0.05, None)
    torch.testing.assert_close(student.weight, torch.tensor([[2.0, -1.0]]), rtol=1e-3, atol=1e-3)
    assert [teacher.weight.tolist() for teacher in teachers] == [[[2.0, 9.0]], [[9.0, -1.0]]]


def test_the_first_step_is_adams_by_the_mean_divergence() -> None:
    torch.manual_seed(0)
    student, teachers = nn.Linear(3, 4), [nn.Linear(3, 4), nn.Linear(3, 4)]
    inputs = [torch.randn(5, 3), torch.randn(7, 3)]
    wanted = copy.deepcopy(student)
    losses = []
    for teacher, values in zip(teachers, inputs, strict=True):
        target, given = teacher(values).softmax(1).detach(), wanted(values).log_softmax(1)
        losses.append((target * (target.log() - given)).sum(1).mean())
    torch.stack(losses).mean().backward()
    optimizer = torch.optim.Adam(wanted.parameters(), 0.1)
    optimizer.step()
    distil(student, teachers, [iter([each]) for each in inputs], 1, 0.1, -1)
    torch.testing.assert_close(student.state_dict(), wanted.state_dict())


def test_the_rate_falls_along_half_a_cosine() -> None:
    # 1, 1/2 of it and so on: Adam's steps of a constant gradient's sign are as long as the rate.
    student, teacher, rates = linear(0.0), linear(1e6), []
    student.weight.register_hook(lambda _: rates.append(student.weight.item()))
    distil(student, [teacher], [repeat(torch.ones(1, 1), 4)], 4, 0.1, None)
    gone = torch.tensor([*rates, student.weight.item()]).diff()
    torch.testing.assert_close(gone, torch.tensor([0.1, 0.1 * (2 + 2**0.5) / 4, 0.05, 0.1 * (2 - 2**0.5) / 4]))


def test_classes_may_stand_before_places() -> None:
    torch.manual_seed(0)
    student, teacher, inputs = nn.Conv1d(2, 3, 1), nn.Conv1d(2, 3, 1), torch.randn(4, 2, 5)
    distil(student, [teacher], [repeat(inputs, 300)], 300, 0.05, 1)
    found, wanted = (each(inputs).softmax(1) for each in (student, teacher))
    assert functional.l1_loss(found, wanted) < 0.01


def test_a_frozen_parameter_stays() -> None:
    student, teacher = linear(1.0, 1.0), linear(3.0, 3.0)
    head = nn.Sequential(student, nn.Linear(1, 1))
    student.requires_grad_(False)
    distil(head, [nn.Sequential(teacher, nn.Linear(1, 1))], [repeat(torch.ones(1, 2), 3)], 3, 0.1, None)
    assert student.weight.tolist() == [[1.0, 1.0]]


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    inputs = iter([torch.ones(1, 2), torch.full((1, 2), torch.inf)])
    with pytest.raises(ModelError, match=r"not finite in step 2; give a smaller --distil-lr"):
        distil(linear(1.0, 1.0), [linear(2.0, 1.0)], [inputs], 2, 0.1, None)


# As a task.


def test_the_task_draws_by_its_seed_alone(gallery, written, tmp_path) -> None:
    made = gallery()
    states, places = written(made)
    own = tuple(Samples(made.partitions, 100) for _ in places)
    results = []
    for number, seed in enumerate((3, 3, 4)):
        out = str(tmp_path / f"out{number}.pt")
        teaching = Teaching(made.objective.model, own, (torch.zeros(2, 6),), 5, 0.01, -1, seed)
        write_distilled(teaching, places, places[0], out, 0)
        results.append(read_checkpoint(out))
    assert same_bits(results[0], results[1])
    assert not same_bits(results[0], results[2])
    assert not same_bits(results[0], states[0])


def test_without_examples_noise_of_the_inputs_shape_is_taught(gallery, written, tmp_path) -> None:
    made = gallery()
    states, places = written(made)
    spec = made.objective.model
    out = str(tmp_path / "out.pt")
    write_distilled(Teaching(spec, (), (torch.zeros(2, 6),), 400, 0.01, None, 0), places[1:], places[0], out, 0)
    student, teacher = spec.build().eval(), spec.build().eval()
    teacher.load_state_dict(states[1])
    inputs = torch.randn(50, 6)
    with torch.no_grad():
        before = functional.mse_loss(student(inputs), teacher(inputs))
        student.load_state_dict(read_checkpoint(out))
        assert functional.mse_loss(student(inputs), teacher(inputs)) < before / 10


def test_noise_of_several_inputs_needs_their_names(gallery) -> None:
    spec = gallery().objective.model
    with pytest.raises(UsageError, match="give --input a dict of them"):
        Teaching(spec, (), (torch.zeros(2, 6), torch.zeros(2, 3)), 1, 0.01, -1, 0).batches(0)


def test_integers_have_no_noise(gallery) -> None:
    spec = gallery().objective.model
    teaching = Teaching(spec, (), {"ids": torch.zeros(2, 6, dtype=torch.int64)}, 1, 0.01, -1, 0)
    with pytest.raises(UsageError, match="these networks read integers; give --data"):
        next(teaching.batches(0))
