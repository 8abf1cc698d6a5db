"""Refusals about networks: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

import torch

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"model": "mine.py:not_a_network"}, "model mine.py:not_a_network must return a torch.nn.Module, not int"),
    ({"model": "mine.py:lazy"}, "has lazy parameters; run it once on an example before returning it"),
    ({"model": "mine.py:no_parameter"}, "has no parameter to train"),
    ({"model": "mine.py:fails"}, "no such file"),
    ({"model": torch.nn.Linear(2, 2)}, "model Linear is a network; give the function or class that makes"),
    ({"loss": torch.nn.MSELoss}, "MSELoss is a class; give what it makes, as MSELoss()"),
    *(
        ({"model": "mlp", "model_options": options}, "model mlp with options")
        for options in ({"width": 3}, {"dropout": 1.5}, {"hidden": -1})
    ),
    ({"model": "cnn", "data": "mine.py:arrays"}, "the cnn reads images"),
    ({"model": "gpt"}, "the gpt reads sequences of tokens of shape (time,), not (1, 8, 8)"),
    ({"model": "mine.py:narrow"}, "float32 gives 2 outputs, but labels go up to 9"),
    ({"model": "mine.py:other_inputs"}, "fails with RuntimeError: "),
    ({"model": "mine.py:narrow", "loss": "mse"}, "outputs of shape (2, 2) for targets of (2,)"),
    ({"model": "mine.py:narrow", "loss": "mine.py:loss_of_many"}, "the loss must be a single number"),
    ({"model": "mine.py:narrow", "loss": "mine.py:loss_of_no_tensor"}, "the loss must be a single number"),
    ({"start_from": "x", "init": "per-partition"}, "init = per-partition gives each partition weights of its own"),
]
