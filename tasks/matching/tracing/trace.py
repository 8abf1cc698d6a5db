"""Follow a network's exported graph, operation by operation, to the layouts of all its tensors."""

from __future__ import annotations

import copy
import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from storage.errors import ModelError, one_line
from tasks.matching.tracing.axes import OPERATION, Layout, LayoutMismatch, length, new_layout, pin_all, unify
from tasks.matching.tracing.rules import RULES, Result, Site, Unknown
from tasks.matching.tracing.rules.elementwise import UNIFORM
from tasks.matching.tracing.rules.registry import Dependence

WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Operations that run a graph of their own, which stands before their operands."""

NOT_UNDERSTOOD = (
    Unknown,
    LayoutMismatch,
    ArithmeticError,
    AttributeError,
    LookupError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What a rule raises for an operation that it was not written for, such as another overload."""


@dataclass
class Trace:
    """The layouts of a network's parameters and buffers, of all its intermediate tensors, and of its sums.

    `unknown` maps an operation without a rule to where it stands first; `consumed` names the nodes of the
    graph whose values go into a sum, which is how the next layer sees a unit.
    """

    program: torch.export.ExportedProgram
    tensors: dict[str, Layout] = field(default_factory=dict)
    intermediate: dict[str, Layout] = field(default_factory=dict)
    sums: list[Dependence] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    consumed: list[str] = field(default_factory=list)
    uniform: set[int] = field(default_factory=set)

    def dependences(self) -> Iterator[Dependence]:
        """Which units may depend on which: in a tensor on all beside them, in a sum on fewer."""
        yield from ((layout, []) for layout in (*self.tensors.values(), *self.intermediate.values()))
        yield from self.sums

    def run(self, graph: fx.Graph, environment: dict[fx.Node, Any]) -> Any:
        """Follow a graph whose placeholders are in the environment; returns what it gives back."""
        for node in graph.nodes:
            if node.op == "output":
                return _values(node.args[0], environment)
            if node.op == "call_function" and not _is_dead(node):
                environment[node] = self._call(node, environment)
                if isinstance(environment[node], list) and not node.name.startswith("_assert"):
                    self.intermediate[_unique(node.name, self.intermediate)] = environment[node]
            elif node.op == "get_attr":
                owner = graph.owning_module
                value = getattr(owner, str(node.target), None) if owner is not None else None
                environment[node] = (
                    new_layout(value.shape, "constant") if isinstance(value, torch.Tensor) else value
                )
        return None

    def _call(self, node: fx.Node, environment: dict[fx.Node, Any]) -> Any:
        if node.target is operator.getitem:
            source, index = _values(node.args[0], environment), _values(node.args[1], environment)
            return source[index] if isinstance(source, tuple) else None
        name = getattr(node.target, "__name__", str(node.target))
        if name in WRAPPERS:
            return self._enter(node, environment)
        shapes = _shapes(node.meta.get("val"))
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._unknown(node, name, shapes, environment) if shapes else None
        if not shapes:
            return None
        return self._apply(node, node.target, shapes, environment)

    def _apply(
        self,
        node: fx.Node,
        target: torch._ops.OpOverload,
        shapes: list[tuple[int, ...]],
        environment: Mapping[fx.Node, Any],
    ) -> Any:
        name = target._schema.name.partition("::")[2]
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        in_place = name.endswith("_") and not name.endswith("__")
        used = frozenset(_values(u.args[1], {}) for u in node.users if u.target is operator.getitem and u.users)
        site = Site(name.removesuffix("_"), shapes, used, frozenset(self.uniform))
        if rule is None:
            return self._unknown(node, str(target), shapes, environment)
        OPERATION.set(f"{target} ({node.name})")
        try:
            found = rule(site, **_arguments(target, node, environment))
            _check_shapes(found, shapes)
            if in_place:
                _write(environment.get(node.all_input_nodes[0]), found)
        except NOT_UNDERSTOOD as error:
            reason = f" ({one_line(error)})" if str(error) else ""
            return self._unknown(node, f"{target}{reason}", shapes, environment)
        self.sums += site.dependences
        if site.summed:
            self.consumed += [n.name for n in node.all_input_nodes if isinstance(environment.get(n), list)]
        if in_place:
            self.uniform.clear()
        elif site.name in UNIFORM:
            self.uniform.add(id(found))
        return found

    def _enter(self, node: fx.Node, environment: dict[fx.Node, Any]) -> Any:
        arguments: list[Any] = [environment.get(a) if isinstance(a, fx.Node) else a for a in node.args]
        position = next(i for i, argument in enumerate(arguments) if isinstance(argument, fx.GraphModule))
        inner = arguments[position].graph
        places = [n for n in inner.nodes if n.op == "placeholder"]
        found = self.run(inner, dict(zip(places, arguments[position + 1 :], strict=True)))
        return tuple(found) if isinstance(found, list | tuple) and not _is_layout(found) else found

    def _unknown(
        self, node: fx.Node, name: str, shapes: list[tuple[int, ...]], environment: Mapping[fx.Node, Any]
    ) -> Result:
        why = f"operation {name} is not understood"
        self.unknown.setdefault(name, node.name)
        for source in node.all_input_nodes:
            for layout in _layouts(environment.get(source)):
                pin_all(layout, why)
        found = tuple(new_layout(shape, why) for shape in shapes)
        return found if isinstance(node.meta["val"], tuple | list) else found[0]


def trace(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Trace:
    """Export a copy of the module in evaluation mode and follow its graph; raises `ModelError`."""
    try:
        copied = copy.deepcopy(model).eval()
        with torch.no_grad(), plain_attention(), _silent(), warnings.catch_warnings():
            # Recurrent layers gather their weights anew, which export takes for a leak.
            warnings.filterwarnings("ignore", message="The tensor attribute.*assigned during export")
            program = torch.export.export(copied, inputs, strict=False)
    except Exception as error:
        raise ModelError(f"torch.export cannot trace {type(model).__name__}: {one_line(error)}") from error
    found = Trace(program)
    names = first_names(copied)
    environment: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            environment[node] = _placeholder(found, node, names)
    used = [environment[node] for node in environment if node.users]
    for layout in found.tensors.values():
        if not any(layout is one for one in used):
            pin_all(layout, "not used")
    outputs = found.run(program.graph, environment)
    for layout in _layouts(outputs):
        pin_all(layout, "output")
    return found


def _is_dead(node: fx.Node) -> bool:
    """Whether nobody uses what the operation gives, and it writes nowhere."""
    target = node.target
    return not node.users and isinstance(target, torch._ops.OpOverload) and not target._schema.is_mutable


def _check_shapes(found: Result, shapes: list[tuple[int, ...]]) -> None:
    """Raise where a rule gives layouts of other shapes than the operation's outputs have."""
    layouts = found if isinstance(found, tuple) else (found,)
    for layout, shape in zip(layouts, shapes, strict=True):
        if layout is not None and tuple(map(length, layout)) != shape:
            raise LayoutMismatch(f"{[length(axis) for axis in layout]} is not its shape {list(shape)}")


def _write(target: Layout | None, found: Result) -> None:
    """What an operation in place gives back is its first argument, whatever its rule makes new."""
    if target is not None and isinstance(found, list):
        for mine, other in zip(target, found, strict=True):
            unify(mine, other)


def _placeholder(found: Trace, node: fx.Node, names: Mapping[str, str]) -> Layout | None:
    value, signature = node.meta.get("val"), found.program.graph_signature
    if not isinstance(value, torch.Tensor):
        return None
    name = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
    if name in names:
        return found.tensors.setdefault(names[name], new_layout(value.shape))
    return new_layout(value.shape, "input" if node.name in signature.user_inputs else "constant")


def first_names(model: nn.Module) -> dict[str, str]:
    """Every name in the module's state, to the first one of the same tensor."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


@contextmanager
def _silent() -> Iterator[None]:
    """Keep torch from logging the traceback of an error that is told in one line."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def plain_attention() -> Iterator[None]:
    """Keep torch from taking its fused path for encoder layers, which is a single opaque operation."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _arguments(target: torch._ops.OpOverload, node: fx.Node, environment: Mapping[fx.Node, Any]) -> dict[str, Any]:
    """The arguments under their names in the operation's schema, with its defaults."""
    schema = target._schema.arguments
    given = dict(zip((argument.name for argument in schema), node.args, strict=False)) | dict(node.kwargs)
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return {name: _values(value, environment) for name, value in (defaults | given).items()}


def _values(argument: Any, environment: Mapping[fx.Node, Any]) -> Any:
    """An argument of the graph with its nodes replaced by their layouts; lists become tuples."""
    if isinstance(argument, fx.Node):
        return environment.get(argument)
    if isinstance(argument, list | tuple):
        return tuple(_values(item, environment) for item in argument)
    if isinstance(argument, dict):
        return tuple(_values(item, environment) for item in argument.values())
    return argument


def _shapes(value: Any) -> list[tuple[int, ...]]:
    """The shapes of all tensors; raises `ModelError` where the data decide on one."""
    shapes = [tuple(t.shape) for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        raise ModelError(f"the shape of an intermediate value depends on the data: {shapes}")
    return shapes


def _is_layout(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(axis, list) for axis in value)


def _layouts(value: Any) -> Iterator[Layout]:
    if _is_layout(value):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _layouts(item)


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    return name if name not in taken else _unique(f"{name}'", taken)
