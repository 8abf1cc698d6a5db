"""Models of installed packages, permuted and matched with themselves: docs/explanation/measurements.md.

    python -m tests.benchmarks.quality.permuted [--only NAME] [--seconds 120]

Needs torchvision, timm and transformers. Each model, small and built from its configuration, is drawn at random in
float64, a copy has all units of each group in a random order, each expert, head and block one of its own, and is
matched with the original. A process for each has so many seconds of one processor. The check of the function is
this module's own: plain forward passes, and a control in which only every other part is permuted, whose outputs
must differ.
"""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import resource
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from roundweave.storage.errors import RoundweaveError, one_line
from roundweave.tasks.matching.groups import Tensors, UnitGroups
from roundweave.tasks.matching.search.matches import match
from roundweave.tasks.matching.units import find_units
from tests.benchmarks.quality.packaged import MODELS, Inputs, declare_operations
from tests.benchmarks.rounds import markdown

TOLERANCE = 1e-10
"""The largest difference of outputs, relative to their spread, that is rounding in float64."""

BLIND = 1e-6
"""The control's difference must be larger, or the outputs would not show a fault."""


@dataclass(frozen=True)
class Line:
    """What became of a model; numbers are missing where it ended before."""

    result: str
    covered: float | None = None
    units: int | None = None
    groups: int | None = None
    analysis: float | None = None
    matching: float | None = None

    def cells(self, name: str) -> list[str]:
        """The row of the table."""
        covered = None if self.covered is None else 100 * self.covered
        numbers = (covered, 1), (self.units, 0), (self.groups, 0), (self.analysis, 1), (self.matching, 1)
        shown = ["" if value is None else f"{value:.{digits}f}" for value, digits in numbers]
        return [name, *shown, self.result]


class Double(TorchFunctionMode):
    """Has a model compute in float64 where it asks for another float type."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the type."""
        wide = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
        args, kwargs = tree_map(
            lambda v: wide.get(v, v) if isinstance(v, torch.dtype) else v, (args, kwargs or {})
        )
        return (torch.Tensor.double if func is torch.Tensor.float else func)(*args, **kwargs)


def draw(network: nn.Module) -> None:
    """Draw all parameters at random at the usual scale, and running statistics near those of unit normals."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            else:
                nn.init.uniform_(parameter, 0.2, 1.2)
        for name, buffer in network.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.3)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def outputs(network: nn.Module, state: Tensors, inputs: Inputs) -> list[torch.Tensor]:
    """What a copy of the network with these tensors gives, in float64."""
    fresh = copy.deepcopy(network)
    for module in fresh.modules():
        if hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")  # expert by expert: the grouped product has no float64
    fresh.load_state_dict(state)
    wide = tree_map(lambda t: t.double() if t.is_floating_point() else t, inputs)
    with torch.no_grad(), Double():
        found = fresh(**wide) if isinstance(wide, Mapping) else fresh(wide)
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def difference(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """The largest difference of outputs, relative to their standard deviation; infinite if any is not finite."""
    apart = 0.0
    for a, b in zip(before, after, strict=True):
        if not a.isfinite().all() or not b.isfinite().all():
            return float("inf")
        apart = max(apart, ((a - b).abs().max() / a.std().clamp_min(1e-30)).item())
    return apart


def half(units: UnitGroups) -> UnitGroups:
    """The same units, said to be in every other part only."""
    return replace(units, pieces=units.pieces[::2])


def measured(name: str) -> Iterator[Line]:
    """What becomes of a model, stage by stage."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    began = time.process_time()
    try:
        units = find_units(model, inputs)
    except RoundweaveError as error:
        yield Line(f"refused: {error}")
        return
    line = Line("not matched", units.coverage, units.free_units, len(units.groups), time.process_time() - began)
    yield line
    torch.set_default_dtype(torch.float64)
    network = model.double()
    draw(network)
    state = network.state_dict()
    order = units.random(torch.Generator().manual_seed(1))
    permuted = units.permute(state, order)
    before = outputs(network, state, inputs)
    error = difference(before, outputs(network, permuted, inputs))
    control = difference(before, outputs(network, half(units).permute(state, order), inputs))
    if not error <= TOLERANCE:
        yield replace(line, result=f"WRONG: outputs differ by {error:.2g}")
        return
    began = time.process_time()
    found = match(state, permuted, units)
    line = replace(line, matching=time.process_time() - began)
    back = units.permute(permuted, found)
    alike = sum(torch.equal(back[each], state[each]) for each in state) / len(state)
    kept = difference(before, outputs(network, back, inputs))
    if not kept <= TOLERANCE:
        result = f"WRONG: outputs differ by {kept:.2g} after matching"
    elif alike == 1:
        result = "recovered"
    else:
        result = f"function kept, {100 * alike:.0f} % of tensors recovered"
    blind = "" if control > BLIND or not units.groups else f"; the check is blind: {control:.1g}"
    unknown = f"; without a rule: {', '.join(units.unknown)}" if units.unknown else ""
    yield replace(line, result=result + blind + unknown)


def prepare() -> None:
    """Import what the models need, for all processes."""
    declare_operations()
    for package in ("torchvision", "timm", "transformers.modeling_utils", "torch.export"):
        importlib.import_module(package)
    torch.set_num_threads(1)  # so that the time of a process is that of one processor


def apart(name: str, seconds: float) -> Line:
    """The line of a model, from a process that has so many seconds; it is forked, as imports take as many."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=alone, args=(name, seconds, sender))
    process.start()
    sender.close()
    last = Line("not analysed")
    with suppress(EOFError):
        while True:
            last = receiver.recv()
    process.join()
    killed = process.exitcode == -signal.SIGKILL
    return replace(last, result=f"{last.result}: not within {seconds:.0f} s") if killed else last


def alone(name: str, seconds: float, sender: Connection) -> None:
    """Send the lines of a model, stage by stage; the system ends this process after so many seconds."""
    resource.setrlimit(resource.RLIMIT_CPU, (round(seconds), round(seconds)))
    line = Line("not analysed")
    try:
        for line in measured(name):
            sender.send(line)
    except Exception as error:  # noqa: BLE001, any fault of a model is shown in its line
        sender.send(replace(line, result=f"{line.result}: WRONG: {type(error).__name__}: {one_line(error)}"))


def main(
    only: Annotated[list[str] | None, typer.Option(help="models whose names contain this")] = None,
    seconds: Annotated[float, typer.Option(help="of one processor for each model")] = 120.0,
) -> None:
    """Print the table as Markdown."""
    prepare()
    heads = ("model", "tensors covered, %", "free units", "groups", "analysis, s", "matching, s", "result")
    chosen = [name for name in MODELS if not only or any(part in name for part in only)]
    markdown(heads, (apart(name, seconds).cells(name) for name in chosen))


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
