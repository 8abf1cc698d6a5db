"""Follows the graph of an exported network to find the axes of all its tensors."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from typing import Any, cast

import torch
import torch.fx.config
from torch import fx, nn

from roundweave.storage.errors import ModelError, one_line
from roundweave.tasks.matching.tracing.axes import (
    OPERATION,
    UNSEEN,
    Atom,
    Axes,
    AxesMismatch,
    UnitNumbers,
    is_axes,
    new_axes,
    pin_all,
    unify,
)
from roundweave.tasks.matching.tracing.exporting import Inputs, exported, first_names
from roundweave.tasks.matching.tracing.rules.registry import Dependence, Site, rule_of
from roundweave.tasks.matching.tracing.rules.routing import PRESERVING, STRICT
from roundweave.tasks.matching.unofficial import (
    OpOverload,
    arguments,
    is_view,
    operation_name,
    taken_apart,
    tensors_in,
    writes,
)

WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Operations that run an inner graph, given as the argument before their operands."""

EXACT = (torch.int32, torch.int64, torch.float32, torch.float64)
"""Types in which the numbers of units stay as they are."""

NOT_UNDERSTOOD = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""Exceptions that a rule raises for an operation that it was not written for, such as another overload."""

Environment = Mapping[fx.Node, Any]
"""The axes of the tensor that a node gives, or of several as a tuple; other values are given as they are."""


@dataclass
class Trace:
    """The axes of a network's parameters and buffers, of all its intermediate values, and of its sums.

    `unknown` maps each operation without a rule to the first node where it occurs. `summed` has the values that go
    into a sum, by the node of the graph that gives them; there the next layer reads the units. `looked_up` has the
    axes along which parts of tensors were looked up, the other axes, and the numbers by which. `training` says
    that the graph that is followed is the one of training mode.
    """

    program: torch.export.ExportedProgram
    tensors: dict[str, Axes] = field(default_factory=dict)
    values: dict[fx.Node, Axes] = field(default_factory=dict)
    sums: list[Dependence] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    summed: dict[fx.Node, Axes] = field(default_factory=dict)
    looked_up: list[tuple[Atom, Axes, Axes]] = field(default_factory=list)
    training: bool = False

    @property
    def every(self) -> list[Axes]:
        """The axes of all tensors."""
        return [*self.tensors.values(), *self.values.values()]

    @property
    def used(self) -> set[Atom]:
        """All atoms in sums, and in values that are computed and not only views of other ones."""
        computed = [n for n in self.values if not (isinstance(n.target, OpOverload) and is_view(n.target))]
        sums = [axes for pair in self.sums for axes in pair]
        return _within((*(self.values[n] for n in computed), *sums))

    @property
    def unreached(self) -> dict[str, int]:
        """The longest axis of each parameter and float buffer of which no operation reads a unit, by name."""
        used, longest = self.used, {}
        for name, axes in self.tensors.items():
            dtype = self.program.state_dict[name].dtype
            units = {atom for atom in _within([axes]) if atom.size > 1}
            if units and used.isdisjoint(units) and (dtype.is_floating_point or dtype.is_complex):
                longest[name] = max(axis.size for axis in axes)
        return longest

    def run(self, graph: fx.Graph, environment: dict[fx.Node, Any]) -> Any:
        """Follow a graph whose placeholders are in the environment; returns the axes of its outputs."""
        for node in graph.nodes:
            if node.op == "output":
                return _values(node.args[0], environment)
            # An operation whose result is unused need not pin anything, unless it writes or reads a parameter.
            needed = node.users or not isinstance(node.target, OpOverload) or writes(node.target)
            needed = needed or any(one.op == "placeholder" for one in node.all_input_nodes)
            if node.op == "call_function" and needed:
                environment[node] = found = self._call(node, environment)
                if is_axes(found) and not node.name.startswith("_assert"):
                    self.values[node] = found
            elif node.op == "get_attr":
                value = getattr(graph.owning_module, str(node.target), None)
                environment[node] = new_axes(value.shape, "constant") if isinstance(value, torch.Tensor) else value
        return None

    def _call(self, node: fx.Node, environment: Environment) -> Any:
        """Return the axes of what a node gives."""
        if node.target is operator.getitem:
            source, index = _values(node.args, environment)
            return source[index] if isinstance(source, tuple) else None
        name = getattr(node.target, "__name__", str(node.target))
        if name in WRAPPERS:
            inner, *operands = dropwhile(lambda each: not isinstance(each, fx.Node), node.args)
            return self._inside(_values(inner, environment).graph, operands, environment)
        shapes = _shapes(node.meta.get("val"))
        if isinstance(node.target, OpOverload):
            if not shapes and not writes(node.target):
                return None
            parts = taken_apart(node) if rule_of(node.target) is None else None
            if parts:
                outputs = self._inside(*parts, environment)
            else:
                outputs = self._apply(node, node.target, shapes, environment)
        else:
            outputs = self._unknown(node, name, shapes, environment)
        return outputs[0] if isinstance(node.meta.get("val"), torch.Tensor) else outputs

    def _apply(
        self, node: fx.Node, target: OpOverload, shapes: list[tuple[int, ...]], environment: Environment
    ) -> tuple[Axes | None, ...]:
        """Return the axes of an operation's outputs by its rule, which also notes its sums."""
        rule = rule_of(target)
        if rule is None:
            return self._unknown(node, str(target), shapes, environment)
        name = operation_name(target).removeprefix("aten::")
        in_place = name.endswith("_") and not name.endswith("__")
        items = [user for user in node.users if user.target is operator.getitem and user.users]
        used = frozenset(cast("int", user.args[1]) for user in items)
        unequal = partial(self._unequal, node, environment)
        site = Site(name.removesuffix("_"), target, shapes, used, self.training, unequal)
        OPERATION.set(f"{target} ({node.name})")
        try:
            named = arguments(target, *node.args, **node.kwargs)
            given = {name: _values(value, environment) for name, value in named.items()}
            outputs = rule(site, **given)
            if not isinstance(outputs, tuple):
                outputs = (outputs,) * len(shapes)
            outputs = self._numbers(node, site, tuple(given.values()), outputs, environment)
            for axes, shape in zip(outputs, shapes, strict=True):
                if axes is not None and tuple(axis.size for axis in axes) != shape:
                    raise AxesMismatch(f"{[axis.size for axis in axes]} is not its shape {list(shape)}")
            if in_place:
                # An in-place operation returns its first argument, so the rule's new axes are unified with it.
                for mine, other in zip(environment[node.all_input_nodes[0]], outputs[0] or [], strict=True):
                    unify(mine, other)
        except NOT_UNDERSTOOD as error:
            reason = f" ({one_line(error)})" if str(error) else ""
            return self._unknown(node, f"{target}{reason}", shapes, environment)
        self.sums += site.dependences
        for units, rest, index in site.looked_up:
            same = (other for other, _, by in self.looked_up if by is index and other.size == units.size)
            unify(next(same, units), units)
            self.looked_up.append((units, rest, index))
        if site.summed:
            # A constant, which has no inputs, shows no units at work.
            inputs = [n for n in node.all_input_nodes if n in self.values and n.all_input_nodes]
            self.summed |= {n: self.values[n] for n in inputs}
        return outputs

    def _unequal(self, node: fx.Node, environment: Environment, units: Atom) -> bool:
        """Whether no two values along an axis of a node's operands are equal but by chance, as those of a router.

        They are of parameters or made of such by operations that neither copy nor cut off.
        """
        sources, atoms = list(node.all_input_nodes), {*units.walk()}
        for source in sources:  # which grows
            axes = environment.get(source)
            if not is_axes(axes) or atoms.isdisjoint(_within([axes])):
                continue
            if any(axes is own for own in self.tensors.values()):
                continue
            name = operation_name(source.target) if isinstance(source.target, OpOverload) else ""
            if name.removeprefix("aten::") not in STRICT or not source.meta["val"].is_floating_point():
                return False
            sources += (one for one in source.all_input_nodes if one not in sources)
        return True

    def _numbers(
        self, node: fx.Node, site: Site, given: Any, outputs: tuple[Axes | None, ...], environment: Environment
    ) -> tuple[Axes | None, ...]:
        """Return the axes of outputs, as numbers where an operation kept those that it was given.

        Others are pinned.
        """
        numbers = [axes for axes in _axes_within(given) if isinstance(axes, UnitNumbers)]
        if site.name in PRESERVING and numbers and node.meta["val"].dtype in EXACT:
            return tuple(UnitNumbers(axes or [], numbers[0].what, *numbers[0].of) for axes in outputs)
        unread = [axes for axes in numbers if not any(axes is read for read in site.read)]
        _pin_numbered(unread, site.name)
        if writes(site.operation) or is_view(site.operation):  # what shares their memory says nothing any more
            changed = [one.of for one in unread]
            for axes in _axes_within(tuple(environment.values())):
                if isinstance(axes, UnitNumbers) and axes.of in changed:
                    axes.what = "written to"
        return tuple(list(axes) if axes and any(axes is one for one in unread) else axes for axes in outputs)

    def _inside(self, graph: fx.Graph, operands: Sequence[Any], environment: Environment) -> Any:
        """Return the axes of what an inner graph gives for operands of the outer one."""
        places = [node for node in graph.nodes if node.op == "placeholder"]
        given = [environment.get(each) if isinstance(each, fx.Node) else each for each in operands]
        return self.run(graph, dict(zip(places, given, strict=True)))

    def _unknown(
        self, node: fx.Node, name: str, shapes: list[tuple[int, ...]], environment: Environment
    ) -> tuple[Axes, ...]:
        """Pin all that an operation without a rule touches; returns new axes for its outputs."""
        why = f"operation {name} is not understood"
        self.unknown.setdefault(name, node.name)
        inputs = list(_axes_within(tuple(environment.get(source) for source in node.all_input_nodes)))
        _pin_numbered(inputs, name)
        for axes in inputs:
            pin_all(axes, why)
        return tuple(new_axes(shape, why) for shape in shapes)


def trace(model: nn.Module, inputs: Inputs) -> Trace:
    """Export the module with inputs (examples, …) and follow its graph. Raises `ModelError`.

    The call in training mode, if there can be one, is followed as well where it reaches further tensors.
    """
    traced, names = Trace(exported(model, inputs)), first_names(model)
    _follow(traced, traced.program, names)
    if unreached := traced.unreached:
        with suppress(ModelError):
            in_training = exported(model, inputs, training=True)
            traced.training = True
            if any(node.users and names.get(target) in unreached for node, target in _places(in_training)):
                _follow(traced, in_training, names)
    return traced


def _places(program: torch.export.ExportedProgram) -> list[tuple[fx.Node, str]]:
    """The inputs of a program's graph, each with its name in the module, empty for the module's arguments."""
    places = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [(n, each.target or "") for n, each in zip(places, program.graph_signature.input_specs, strict=True)]


def _follow(traced: Trace, program: torch.export.ExportedProgram, names: Mapping[str, str]) -> None:
    """Follow a program's graph, in which the parameters that the trace has have the axes that they have there."""
    environment = {node: _placeholder(traced, node, target, names) for node, target in _places(program)}
    outputs = list(_axes_within(traced.run(program.graph, environment)))
    _pin_unseen(traced, program.graph)
    _pin_numbered(outputs, "output")
    for axes in outputs:
        pin_all(axes, "output")


def _pin_unseen(traced: Trace, graph: fx.Graph) -> None:
    """Pin the units of tensors of which no output is made, as another call may show them in their order."""
    live = copy.deepcopy(graph)
    twins = dict(zip(graph.nodes, live.nodes, strict=True))
    live.eliminate_dead_code()
    kept = {*live.nodes}
    unseen = {node for node, twin in twins.items() if node in traced.values and twin not in kept}
    seen = _within([axes for node, axes in traced.values.items() if node not in unseen])
    lost = _within([traced.values[node] for node in unseen])
    pin_all([*(lost & _within(traced.tensors.values()) - seen)], "its result is not used")


def _within(tensors: Iterable[Axes]) -> set[Atom]:
    """Return all atoms of the axes of several tensors."""
    return {atom for axes in tensors for axis in axes for atom in axis.walk()}


def _pin_numbered(tensors: Iterable[Axes], reader: str) -> None:
    """Pin the units whose numbers something reads that does not know of another order of them."""
    for axes in tensors:
        if isinstance(axes, UnitNumbers):
            pin_all(list(axes.of), f"{UNSEEN}{reader} reads their numbers")


def _placeholder(traced: Trace, node: fx.Node, target: str, names: Mapping[str, str]) -> Axes | None:
    """Return the axes of an input of the graph; `target` is its name in the module; see `_places`."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    if target in names:
        return traced.tensors.setdefault(names[target], new_axes(value.shape))
    return new_axes(value.shape, "constant" if target else "input")


def _values(argument: Any, environment: Environment) -> Any:
    """Return an argument of the graph with its nodes replaced by their axes; lists become tuples."""
    if isinstance(argument, fx.Node):
        return environment.get(argument)
    if isinstance(argument, dict):
        argument = tuple(argument.values())
    if isinstance(argument, list | tuple):
        return tuple(_values(part, environment) for part in argument)
    return argument


def _shapes(value: Any) -> list[tuple[int, ...]]:
    """Return the shapes of all tensors in a value. Raises `ModelError` for a shape that depends on the data."""
    shapes = [tuple(tensor.shape) for tensor in tensors_in(value)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        raise ModelError(f"the shape of an intermediate value depends on the data: {shapes}")
    return shapes


def _axes_within(value: Any) -> Iterator[Axes]:
    """Yield the axes of all tensors in a value, which may be nested tuples."""
    if is_axes(value):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _axes_within(part)
