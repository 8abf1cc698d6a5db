"""The network that is analysed before a merge, or by `roundweave units`, with example inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from roundweave.flows.config.experiment import PREPARED
from roundweave.flows.config.merging.merge import Architecture
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.merging.recorded import Origin
from roundweave.flows.planning.completing import with_source
from roundweave.flows.planning.describing import describe, may_own_loss, objective_for
from roundweave.flows.planning.plan import Plan, plan_rounds
from roundweave.storage.errors import (
    CodeError,
    DataError,
    ModelError,
    UnitsUnsound,
    UsageError,
    failing_as,
    one_line,
)
from roundweave.storage.values.lazy import known_specs
from roundweave.storage.values.tensors import dtype_name
from roundweave.tasks.data.description import Description, combine, gather_here
from roundweave.tasks.data.partitions import Partitions, forget_examples
from roundweave.tasks.matching.check import check_function, largest_change, randomise
from roundweave.tasks.matching.groups import Tensors, UnitGroups
from roundweave.tasks.matching.tapping import BATCH
from roundweave.tasks.matching.tracing.exporting import Inputs, as_call, changed_inputs
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.gallery import Samples
from roundweave.tasks.merging.rows.labels import with_a_row_for_each_output
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.networks.pretrained import inputs_by_kind
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code, find_code, is_reference

AnyArchitecture = TypeVar("AnyArchitecture", bound=Architecture)


SAME = 1e-4
"""The largest difference of outputs, over their spread, of two models that are the same network."""

OUTPUTS = 10
"""The number of outputs of a built-in model if there are neither data nor a network."""


@dataclass(frozen=True)
class Subject:
    """A network to analyse: how it is built, example inputs, and partitions of examples if there are data.

    `description` is that of the data; of partitions that are loaded one by one, that of the first.
    """

    objective: Objective
    inputs: Inputs
    partitions: Partitions | None
    description: Description | None = None

    @property
    def few(self) -> Inputs:
        """The first two example inputs if there are data: outputs, such as logits of each token, may be large."""
        return self.inputs if self.partitions is None else moved(self.inputs, lambda tensor: tensor[:2])


def kept_code(config: AnyArchitecture) -> AnyArchitecture:
    """Return the configuration with references to the user's functions replaced by their source."""
    return config.model_copy(update=with_source(config, config.model))


def subject(config: Architecture, blocks: int = 1, tensors: Tensors | None = None) -> Subject:
    """Return the network of a configuration that went through `kept_code`, tried once on example inputs.

    The examples are split into `blocks`. Without data a built-in model has as many outputs as the `tensors` of a
    network show. Raises `UsageError` if neither data nor the inputs' shape are given.
    """
    if config.model is None:
        raise UsageError("no model is named; give --model FILE.py:function, or one of " + ", ".join(MODELS))
    if config.data is None:
        return _without_data(config, config.model, tensors)
    each = config.data if isinstance(config.data, tuple) else ()
    forget_examples()  # of an earlier run or merge; their files may have changed
    planned = _planned(config, len(each) or blocks)
    if planned.partitions.source.partitioned:  # the network is tried on the first one alone
        dealt, training = planned.partitions, planned.config
        partitions, description = _described(dealt) if each else (dealt, dealt.describe(0))
        objective = objective_for(training, description)
        objective = check_fit(objective, partitions, description, 0, may_own_loss(training))
    else:
        known = describe(planned, gather_here)
        partitions, objective, description = known.partitions, known.objective, known.description
    return Subject(objective, partitions.load(0, 0).first(BATCH).inputs, partitions, description)


def _described(partitions: Partitions) -> tuple[Partitions, Description]:
    """Data sets with labels numbered alike, and what is known of all. Raises `DataError` for different names.

    Other than partitions they need not be of one kind: images may have other sizes.
    """
    partitions, descriptions = partitions.described_by(gather_here)
    for number, each in enumerate(descriptions):
        if each.unreadable:
            raise DataError(f"data set {number}: {each.unreadable}")
    description = combine(descriptions, "data set {}".format, alike=False)
    return replace(partitions, shared=bool(description.shared)), description


def _planned(config: Architecture, partitions: int) -> Plan:
    """Return the plan of a network and its examples in so many partitions, as that of a run with them."""
    fields = ("held_out", "dtype", "seed", "data", "data_options", "target", "loss", "model", *PREPARED)
    same: dict[str, Any] = {field: getattr(config, field) for field in fields}
    return plan_rounds(TrainConfig(**same, model_options=config.model_options or {}, partitions=partitions))


def _without_data(config: Architecture, model: str | Code, tensors: Tensors | None) -> Subject:
    inputs = example_inputs(config.input, config.dtype) if config.input else _inputs_by_kind(config, model)
    spec = spec_of(config, model, inputs, tensors)
    return Subject(Objective(spec, config.loss or "cross_entropy"), inputs, None)


def spec_of(
    config: Architecture, model: str | Code, inputs: Inputs = (), tensors: Tensors | None = None
) -> ModelSpec:
    """Return how a configuration's network is built for example inputs (examples, …); users' functions need none.

    A built-in model has as many outputs as the `tensors` of a network show.
    """
    options = json.dumps(config.model_options or {}, sort_keys=True)
    shape = next((tuple(tensor.shape[1:]) for tensor in _tensors(inputs)), ())
    spec = ModelSpec(model, shape, OUTPUTS, config.dtype, config.seed, options)
    if isinstance(model, Code) or tensors is None:
        return spec
    rows = {each.name: each.shape[0] for each in known_specs(tensors) if each.shape}
    shown = rows.keys() & with_a_row_for_each_output(spec, spec.outlined())
    return replace(spec, outputs=rows[min(shown)]) if shown else spec


def _inputs_by_kind(config: Architecture, model: str | Code) -> Inputs:
    """Example inputs for a network of the transformers package. Raises `UsageError` for any other."""
    found = inputs_by_kind(spec_of(config, model).outlined()) if isinstance(model, Code) else None
    if found is None:
        raise UsageError("give --data, or --input with the shape of example inputs, such as 2x3x32x32")
    dtype = getattr(torch, config.dtype)
    return moved(found, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _tensors(inputs: Inputs) -> list[torch.Tensor]:
    given, named = as_call(inputs)
    return [*given, *named.values()]


def analysed(found: Subject, network: nn.Module, alike: Callable[[str], bool] = lambda name: False) -> UnitGroups:
    """Return the units of the network, of whose parameters no values are read.

    Raises `ModelError`; see `find_units`.
    """
    with _clearer(found):
        return find_units(network, found.inputs, alike)


def checked_error(found: Subject, network: nn.Module, units: UnitGroups) -> float:
    """Return the function error of the units. Raises `UnitsUnsound` if it is too large, and `ModelError`."""
    with _clearer(found):
        return check_function(network, found.few, units)


def check_same_models(model: ModelSpec, inputs: Inputs, every: Iterable[Architecture]) -> None:
    """Raise `ModelError` if one of the networks' own models gives something else with the same weights."""
    for own in map(kept_code, every):
        assert own.model is not None
        options = json.dumps(own.model_options or {}, sort_keys=True)
        _check_same(model, inputs, replace(model, model=own.model, options=options))


def _check_same(model: ModelSpec, inputs: Inputs, other: ModelSpec) -> None:
    if other == model:
        return
    what = f"models {model.name} {model.options} and {other.name} {other.options} of these runs are other networks"
    what += "; give --model and --model-options if one is right for all"
    one, two = (each.build().eval().double() for each in (model, other))
    randomise(one, torch.Generator().manual_seed(0))
    large = changed_inputs(inputs, lambda x: 10 * x if x.is_floating_point() else x)  # shows what a clamp cuts off
    with failing_as(lambda error: ModelError(what)), pinned(0, threads=1):
        two.load_state_dict(one.state_dict())
        change = max(largest_change(one, two, each) for each in (inputs, large))
    if change > SAME:
        raise ModelError(what)


@contextmanager
def _clearer(found: Subject) -> Iterator[None]:
    """Have an error of the analysis say of inputs that do not fit what the network itself says of them."""
    try:
        yield
    except UnitsUnsound:
        raise
    except ModelError:
        if found.partitions is None:
            _try(found)
        raise


def _try(found: Subject) -> None:
    """Raise `ModelError` if the network fails on its example inputs."""
    given, named = as_call(found.inputs)
    shapes = ", ".join(f"{tuple(each.shape)} {dtype_name(each.dtype)}" for each in _tensors(found.inputs))
    what = f"the model fails on inputs of shape {shapes}"
    network = found.objective.model.build().eval()
    with failing_as(lambda error: ModelError(f"{what} with {one_line(error)}")), torch.no_grad():
        network(*given, **named)


def example_inputs(given: str, dtype: str) -> Inputs:
    """Random inputs of a shape such as ``2x3x32x32``, integers 0 and 1 for ``int64:2x16``, or a function's value.

    Raises `UsageError` for another text.
    """
    if is_reference(given):
        return _own_inputs(find_code(given))
    kind, _, dimensions = given.rpartition(":")
    try:
        shape = [int(size) for size in dimensions.split("x")]
        if kind not in ("", "int64") or min(shape) < 1:
            raise ValueError
    except ValueError as error:
        raise UsageError(
            f"--input {given!r} is no shape such as 2x3x32x32 or int64:2x16, and no FILE.py:function"
        ) from error
    generator = torch.Generator().manual_seed(0)
    if kind:
        return (torch.randint(0, 2, shape, generator=generator),)
    return (torch.randn(shape, generator=generator, dtype=getattr(torch, dtype)),)


def _own_inputs(code: Code) -> Inputs:
    with failing_as(lambda error: CodeError(f"{code.reference} failed with {one_line(error)}")):
        value = code.load()()
    known = isinstance(value, torch.Tensor | tuple | list | Mapping)
    tensors = _tensors(value) if known else []
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        kind = type(value).__name__
        raise UsageError(f"{code.reference} must return a tuple of tensors or a dict of them, not {kind}")
    given, named = as_call(value)
    return named or given


def unit_report(config: Architecture) -> dict[str, Any]:
    """The report of `roundweave units` on a network: its unit groups, and which units are free or pinned and why.

    Raises `ModelError` if permuting the units changes the function.
    """
    found = subject(kept_code(config))
    began = time.perf_counter()
    network = found.objective.model.outlined()
    units = analysed(found, network)
    seconds = time.perf_counter() - began
    return {
        "groups": {
            name: {
                "units": group.size,
                "depends_on": list(group.parents),
                "members": [{"tensor": t, "axis": axis, "offset": at} for t, axis, at in units.members(name)],
            }
            for name, group in units.groups.items()
        },
        "coverage": units.coverage,
        "free_units": units.free_units,
        "pinned_units": units.pinned_units,
        "pinned": dict(units.pinned),
        "unknown": dict(units.unknown),
        "function_error": checked_error(found, network, units),
        "seconds": seconds,
    }


def own_samples(config: Architecture, own: Mapping[str, Any], run: Origin | None, examples: int) -> Samples:
    """The training examples of one network's own, by the fields of `own_data`, in the order that its run has."""
    each = len(own["data"]) if isinstance(own["data"], tuple | list) else 1
    partitions = _planned(config.model_copy(update=dict(own)), each).partitions
    source = partitions.source.arranged(run.meaning) if run else partitions.source
    return Samples(replace(partitions, source=source), examples)
