"""Networks that hold their layers in odd ways, or change themselves in forward: right or refused, never wrong.

Each of `odd/` is trained by the project, and by a plain loop in which one network goes on from round to round.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from roundweave import Examples, RoundweaveError, batches
from roundweave.tasks.numerics.pinning import derive_seed, pinned

if TYPE_CHECKING:
    from roundweave.flows.stored import Run
    from tests.conftest import Train

FOLDER = Path(__file__).with_name("odd")
SEED, SIZE, RATE = 5, 8, 0.3
CLOSE = 1e-8

pytestmark = pytest.mark.filterwarnings("ignore")  # as users see no more than a warning that torch.jit is old

LENGTHS = {"fed_avg": (2, 5), "sync_sgd": (4, 1)}
"""How many rounds are made by an algorithm, and of how many steps each."""

REFUSED = {
    "cached_function": "is one network, whenever it is called",
    "global_layer": "is one layer in all networks",
    "global_network": "is one network, whenever it is called",
    "running_maximum_always": "is changed by being scored",
    "teacher_always": "is changed by being scored",
    "activation_initialised_by_attribute": "each round begins without the attribute, and initialises again",
    "checkpointed": "its first layer gets no gradient",
    "counter_as_attribute": "each round begins to count at 0",
    "counter_in_a_closure": "a process goes on counting through trials, other runs and replays",
    "counter_of_gradients": "likewise, and only gradients depend on it",
    "counter_of_warm_up": "each round begins to count at 0, so that the threshold of 7 is not reached in 5 steps",
    "dropout_of_own_generator": "each round draws the same",
    "gradients_alternating": "each round begins with the first layer, after an odd number of steps",
    "hidden_state": "each round begins without it, and evaluation, too",
    "layer_made_at_first_call": "no state has it, and each round draws another",
    "lru_cached_weight": "each round has the norm of its own first step",
    "mean_as_attribute": "evaluation begins at 0",
    "mean_as_buffer_without_state": "evaluation begins at 0",
    "noise_of_own_numpy": "each round draws the same",
    "teacher_in_a_list": "evaluation is by the initial weights",
    "without_gradients": "nothing is trained",
}
"""What they keep from pass to pass, and no state holds, decides what they give, or they are not trained."""

EITHER = {
    "momentum_contrast": "takes batches of eight alone, so that it cannot be tried on two examples",
    "parameter_of_data": "two parameters over one memory",
}
"""They can be trained, and may as well be refused. All others of `odd/` are to be trained."""

EITHER_BY_GRADIENTS = {
    "activation_initialised": "the first batch decides its parameters",
    "clamped_parameter": "a parameter that is clamped in forward",
    "clipped_weights": "parameters that are clipped in forward",
    "counter_of_warm_up": "the threshold of 7 is not reached in 4 steps",
    "data_exchanged": "a parameter that forward normalises",
    "embedding_of_bounded_norm": "rows that forward shortens",
    "parameter_replaced": "a parameter that forward makes anew",
}
"""Where maps send gradients, what forward does to parameters gets lost if it is not sent, too."""

NAMES = """
lambda_over_scale partial_over_weight detached_view stored_generator by_weakref unregistered_layer
cached_function global_registry random_constant forward_hook hook_after_gradient weights_computed traced_part
teacher teacher_always clamped_parameter data_exchanged parameter_replaced gradients_toggled
activation_initialised layer_made_at_first_call norm_in_evaluation mean_as_buffer mean_as_buffer_without_state
counter_as_buffer counter_as_attribute counter_of_warm_up counter_of_gradients dropout_of_own_generator
noise_of_numpy checkpointed checkpointed_frozen without_gradients
"""
FIRST = NAMES.split()
"""One of each way in which a network may be lost in a copy, carry something on, or change itself."""

FIRST_BY_GRADIENTS = ["teacher", "clamped_parameter", "counter_as_buffer"]

Tensors = dict[str, torch.Tensor]


def networks(first: Collection[str], files: str = "*") -> list[Any]:
    """The functions of `odd/` that make a network, as ``file.function``; all but the first ones are thorough."""
    return [
        pytest.param(f"{file.stem}.{each.name}", marks=() if each.name in first else pytest.mark.thorough)
        for file in sorted(FOLDER.glob(f"{files}.py"))
        for each in ast.parse(file.read_text()).body
        if isinstance(each, ast.FunctionDef) and ast.unparse(each.returns or each) == "nn.Module"
    ]


def imported(file: str) -> ModuleType:
    """A file of `odd/` as a new module, whose globals no run has used."""
    spec = importlib.util.spec_from_file_location(f"odd_{file}", FOLDER / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def made(file: str, name: str) -> nn.Module:
    """The network as its function makes it under the run's seed.

    It is brought to training mode, but for parts that the function put in evaluation mode and not all of it.
    """
    module = imported(file)
    with pinned(derive_seed(SEED, "model"), threads=1):
        network = getattr(module, name)().to(torch.float64)
    frozen = [part for part in network.modules() if network.training and not part.training]
    network.train()
    for part in frozen:
        part.eval()
    return network


def tensors_of(network: nn.Module) -> Tensors:
    """The parameters and buffers that a state holds, by name."""
    kept = network.state_dict(keep_vars=True)
    return dict(network.named_parameters()) | {n: b for n, b in network.named_buffers() if n in kept}


@contextmanager
def evaluated(network: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while, after which each module has the mode that it had."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad(), pinned(0, threads=1):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def plain_loop(network: nn.Module, rounds: int, steps: int) -> Iterator[tuple[Tensors, dict[str, float]]]:
    """Train one network; gives the state before the first round and after each, with its held-out scores."""
    (inputs, labels), (held_out, wanted) = imported("data").data()
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=RATE)
    yield tensors_of(network), {}
    for number in range(1, rounds + 1):
        seed = derive_seed(SEED, number, 0)
        with pinned(seed, threads=1):
            for batch in batches(Examples(inputs, labels), SIZE, steps, seed):
                optimizer.zero_grad()
                cross_entropy(network(batch.inputs), batch.targets).backward()
                optimizer.step()
        state = {name: tensor.detach().clone() for name, tensor in tensors_of(network).items()}
        with evaluated(network):
            outputs = network(held_out)
        accuracy = (outputs.argmax(1) == wanted).double().mean().item()
        yield state, {"loss": cross_entropy(outputs, wanted).item(), "accuracy": accuracy}


def difference(run: Run, plain: Iterable[tuple[Tensors, dict[str, float]]]) -> tuple[float, str]:
    """The first difference of a run from a plain loop, or the largest that is close, and where."""
    found = []
    for number, (state, scores) in enumerate(plain):
        round = run.round(number)
        tensors = round.tensors
        found += [(math.inf, f"{name}, which the run lacks") for name in state if name not in tensors]
        apart = {name: tensors[name].double() - state[name].double() for name in tensors if name in state}
        distances = {name: tensor.abs().max().item() for name, tensor in apart.items()}
        if scores:
            reported = {"loss": round.score.loss} | round.score.values
            distances |= {name: abs(reported[name] - score) for name, score in scores.items()}
        found += [(distance, f"{name} of round {number}") for name, distance in distances.items()]
    return next((each for each in found if not each[0] <= CLOSE), max(found))  # NaN is not close


def outcome(train: Train, file: str, name: str, algorithm: str) -> tuple[str, str]:
    """Whether the project trains a network right, wrong, or refuses it, with the difference or the line."""
    rounds, steps = LENGTHS[algorithm]
    what = {"data": f"{FOLDER / 'data.py'}:data", "model": f"{FOLDER / file}.py:{name}", "dtype": "float64"}
    how = {"algorithm": algorithm, "partitions": 1, "split": "contiguous", "batch_size": SIZE, "lr": RATE}
    how |= {"local_steps": steps} if algorithm == "fed_avg" else {}
    try:
        run = train(**what, **how, seed=SEED, rounds=rounds, name="odd")
    except RoundweaveError as error:
        return ("refused" if len(str(error).splitlines()) == 1 else "wrong"), str(error)
    distance, where = difference(run, plain_loop(made(file, name), rounds, steps))
    if not distance <= CLOSE:
        return "wrong", f"differs by {distance:.2g} in {where}"
    replay = run.replay("all")
    return ("right" if replay.identical else "wrong"), f"{distance:.2g} in {where}; {replay}"


def wanted(name: str) -> set[str]:
    """The outcomes of local steps that are sound."""
    return {"refused"} if name in REFUSED else {"right", "refused"} if name in EITHER else {"right"}


@pytest.mark.parametrize("network", networks(FIRST))
def test_an_odd_network_is_trained_right_or_refused(train: Train, network: str) -> None:
    file, name = network.split(".")
    found, how = outcome(train, file, name, "fed_avg")
    assert found in wanted(name), f"{found}: {how}"


@pytest.mark.parametrize("network", networks(FIRST_BY_GRADIENTS, "[cp]ar*"))
def test_so_it_is_by_gradients(train: Train, network: str) -> None:
    file, name = network.split(".")
    found, how = outcome(train, file, name, "sync_sgd")
    assert found in ({"right", "refused"} if name in EITHER_BY_GRADIENTS else wanted(name)), f"{found}: {how}"


def test_the_tables_name_each_network_once() -> None:
    names = [network.values[0].split(".")[1] for network in networks(FIRST)]
    assert len(names) == len({*names})
    assert {*FIRST, *FIRST_BY_GRADIENTS} <= {*names}
    assert {*REFUSED, *EITHER, *EITHER_BY_GRADIENTS} <= {*names}
    assert not {*REFUSED} & {*EITHER}
