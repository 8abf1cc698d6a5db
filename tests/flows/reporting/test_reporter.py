"""What Prefect is given of a configuration."""

from __future__ import annotations

import torch

import roundweave as rw
from roundweave.flows.reporting.reporter import without_pickles
from roundweave.tasks.own_code.code import find_code


def test_the_name_of_a_function_stands_for_one_whose_pickle_is_large() -> None:
    array, few = torch.arange(10_000.0), rw.TrainConfig(data="digits", partitions=3)
    many = few.model_copy(update={"data": (find_code(lambda: (array, array)), "digits")})
    assert without_pickles(many).data == (many.data[0].label, "digits")
    assert without_pickles(few) == few
    assert without_pickles(few).model_fields_set == few.model_fields_set
