"""Follows a network's exported graph, one operation at a time, to find the axes of all its tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx, nn

from storage.errors import ModelError, one_line
from tasks.matching.tracing.axes import OPERATION, Axes, AxesMismatch, is_axes, length, new_axes, pin_all, unify
from tasks.matching.tracing.exporting import exported, first_names
from tasks.matching.tracing.rules.elementwise import UNIFORM, elementwise
from tasks.matching.tracing.rules.registry import RULES, Dependence, Site
from tasks.matching.unofficial import OpOverload, arguments, operation_name, tensors_in, writes

WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Operations that run an inner graph, given as the argument before their operands."""

NOT_UNDERSTOOD = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""Exceptions that a rule raises for an operation that it was not written for, such as another overload."""


@dataclass
class Trace:
    """The axes of a network's parameters and buffers, of all its intermediate tensors, and of its sums.

    `unknown` maps each operation without a rule to the first node where it occurs. `consumed` names the graph's
    nodes whose values go into a sum; there the next layer reads the units. `uniform` has the ids of axes of
    constants whose elements are all equal.
    """

    program: torch.export.ExportedProgram
    tensors: dict[str, Axes] = field(default_factory=dict)
    intermediate: dict[str, Axes] = field(default_factory=dict)
    sums: list[Dependence] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    consumed: list[str] = field(default_factory=list)
    uniform: set[int] = field(default_factory=set)

    def dependences(self) -> Iterator[Dependence]:
        """All places that restrict which units' order may depend on which others: tensors and sums."""
        yield from ((axes, []) for axes in (*self.tensors.values(), *self.intermediate.values()))
        yield from self.sums

    def run(self, graph: fx.Graph, environment: dict[fx.Node, Any]) -> Any:
        """Follow a graph whose placeholders are in the environment; returns the axes of its outputs."""
        for node in graph.nodes:
            if node.op == "output":
                return _values(node.args[0], environment)
            # An operation whose result is unused and that writes into nothing need not pin anything.
            needed = node.users or not isinstance(node.target, OpOverload) or writes(node.target)
            if node.op == "call_function" and needed:
                environment[node] = self._call(node, environment)
                if isinstance(environment[node], list) and not node.name.startswith("_assert"):
                    self.intermediate[_unique(node.name, self.intermediate)] = environment[node]
            elif node.op == "get_attr":
                owner = graph.owning_module
                value = getattr(owner, str(node.target), None) if owner is not None else None
                environment[node] = new_axes(value.shape, "constant") if isinstance(value, torch.Tensor) else value
        return None

    def _call(self, node: fx.Node, environment: dict[fx.Node, Any]) -> Any:
        if node.target is operator.getitem:
            source, index = _values(node.args[0], environment), _values(node.args[1], environment)
            return source[index] if isinstance(source, tuple) else None
        name = getattr(node.target, "__name__", str(node.target))
        if name in WRAPPERS:
            return self._enter(node, environment)
        shapes = _shapes(node.meta.get("val"))
        if not isinstance(node.target, OpOverload):
            return self._unknown(node, name, shapes, environment) if shapes else None
        if not shapes and not writes(node.target):
            return None
        return self._apply(node, node.target, shapes, environment)

    def _apply(
        self, node: fx.Node, target: OpOverload, shapes: list[tuple[int, ...]], environment: Mapping[fx.Node, Any]
    ) -> Any:
        name = operation_name(target).removeprefix("aten::")
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        if rule is None and torch.Tag.pointwise in target.tags:
            rule = elementwise
        if rule is None:
            return self._unknown(node, str(target), shapes, environment)
        items = [user for user in node.users if user.target is operator.getitem and user.users]
        used = frozenset(cast("int", user.args[1]) for user in items)
        site = Site(name.removesuffix("_"), target, shapes, used, frozenset(self.uniform))
        in_place = name.endswith("_") and not name.endswith("__")
        OPERATION.set(f"{target} ({node.name})")
        try:
            named = arguments(target, *node.args, **node.kwargs)
            outputs = rule(site, **{name: _values(value, environment) for name, value in named.items()})
            if not isinstance(outputs, tuple):
                outputs = (outputs,) * len(shapes)
            for axes, shape in zip(outputs, shapes, strict=True):
                if axes is not None and tuple(map(length, axes)) != shape:
                    raise AxesMismatch(f"{[length(axis) for axis in axes]} is not its shape {list(shape)}")
            if in_place:
                # An in-place operation returns its first argument, so the rule's new axes are unified with it.
                for mine, other in zip(environment[node.all_input_nodes[0]], outputs[0] or [], strict=True):
                    unify(mine, other)
        except NOT_UNDERSTOOD as error:
            reason = f" ({one_line(error)})" if str(error) else ""
            return self._unknown(node, f"{target}{reason}", shapes, environment)
        self.sums += site.dependences
        if site.summed:
            self.consumed += [n.name for n in node.all_input_nodes if isinstance(environment.get(n), list)]
        if in_place:
            self.uniform.clear()
        elif site.name in UNIFORM.split():
            self.uniform.add(id(outputs[0]))
        return _as_given(node, outputs)

    def _enter(self, node: fx.Node, environment: dict[fx.Node, Any]) -> Any:
        given: list[Any] = [environment.get(a) if isinstance(a, fx.Node) else a for a in node.args]
        position = next(i for i, argument in enumerate(given) if isinstance(argument, fx.GraphModule))
        inner = given[position].graph
        places = [n for n in inner.nodes if n.op == "placeholder"]
        result = self.run(inner, dict(zip(places, given[position + 1 :], strict=True)))
        return tuple(result) if isinstance(result, list | tuple) and not is_axes(result) else result

    def _unknown(
        self, node: fx.Node, name: str, shapes: list[tuple[int, ...]], environment: Mapping[fx.Node, Any]
    ) -> Any:
        why = f"operation {name} is not understood"
        self.unknown.setdefault(name, node.name)
        for source in node.all_input_nodes:
            for axes in _axes_within(environment.get(source)):
                pin_all(axes, why)
        outputs = tuple(new_axes(shape, why) for shape in shapes)
        return _as_given(node, outputs)


def trace(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Trace:
    """Export the module with inputs (examples, …) and follow its graph; raises `ModelError`."""
    program = exported(model, inputs)
    traced = Trace(program)
    names = first_names(model)
    places = [node for node in program.graph.nodes if node.op == "placeholder"]
    environment = {node: _placeholder(traced, node, names) for node in places}
    used = [environment[node] for node in places if node.users]
    for axes in traced.tensors.values():
        if not any(axes is one for one in used):
            pin_all(axes, "not used")
    for axes in _axes_within(traced.run(program.graph, dict(environment))):
        pin_all(axes, "output")
    return traced


def _as_given(node: fx.Node, outputs: tuple[Any, ...]) -> Any:
    """The axes of a node's single tensor, or the tuple of axes if the operation returns several."""
    return outputs[0] if isinstance(node.meta.get("val"), torch.Tensor) else outputs


def _placeholder(traced: Trace, node: fx.Node, names: Mapping[str, str]) -> Axes | None:
    value, signature = node.meta.get("val"), traced.program.graph_signature
    if not isinstance(value, torch.Tensor):
        return None
    name = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
    if name in names:
        return traced.tensors.setdefault(names[name], new_axes(value.shape))
    return new_axes(value.shape, "input" if node.name in signature.user_inputs else "constant")


def _values(argument: Any, environment: Mapping[fx.Node, Any]) -> Any:
    """An argument of the graph with its nodes replaced by their axes; lists become tuples."""
    if isinstance(argument, fx.Node):
        return environment.get(argument)
    if isinstance(argument, list | tuple):
        return tuple(_values(part, environment) for part in argument)
    if isinstance(argument, dict):
        return tuple(_values(part, environment) for part in argument.values())
    return argument


def _shapes(value: Any) -> list[tuple[int, ...]]:
    """The shapes of all tensors in a value; raises `ModelError` for a shape that depends on the data."""
    shapes = [tuple(tensor.shape) for tensor in tensors_in(value)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        raise ModelError(f"the shape of an intermediate value depends on the data: {shapes}")
    return shapes


def _axes_within(value: Any) -> Iterator[Axes]:
    """The axes of all tensors in a value, which may be nested tuples."""
    if is_axes(value):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from _axes_within(part)


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    return name if name not in taken else _unique(f"{name}'", taken)
