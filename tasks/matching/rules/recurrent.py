"""LSTM, GRU and plain recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.matching.layouts import Atom, Axis, Layout, expand, length, new_axis, pin, unify
from tasks.matching.rules.registry import Result, Site, Unknown, rule

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*GATES)
def _recurrent(
    site: Site,
    input: Layout,
    hx: Any,
    params: Sequence[Layout],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
    **_: Any,
) -> Result:
    """Weights are (gate x hidden, in) and (gate x hidden, hidden), the hidden units on two axes of one matrix."""
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(params) != each * num_layers * directions:
        raise Unknown  # a projection of the hidden state
    current, hidden = input[-1], []
    for layer in range(num_layers):
        units = []
        for direction in range(directions):
            first = (layer * directions + direction) * each
            units.append(_cell(GATES[site.name], current, params[first : first + each]))
        hidden += units
        current = [segment for axis in units for segment in axis]
    batch, time = input[:2] if batch_first else input[1::-1]
    pin(time, "time")
    site.contract([time, input[-1]], [], [batch])
    final = _final(hidden, batch)
    for state in hx if isinstance(hx, tuple) else (hx,):
        _begin(state, hidden, site)
    outputs = [*input[:-1], current]
    return (outputs, final, final) if site.name == "lstm" else (outputs, final)


def _cell(gates: int, inputs: Axis, params: Sequence[Layout]) -> Axis:
    units = Atom(length(params[1][1]))
    for tensor in params:
        unify(tensor[0], [[Atom(gates, "gates"), units]])
    unify(params[0][1], inputs)
    unify(params[1][1], [[units]])
    return [[units]]


def _final(hidden: list[Axis], batch: Axis) -> Layout:
    """(layer x direction, example, unit): every layer has units of its own, chosen by its index."""
    if len(hidden) == 1:
        return [new_axis(1), batch, hidden[0]]
    layers, units = Atom(len(hidden), "layers"), Atom(length(hidden[0]))
    units.chosen[layers] = {i: axis[0][0] for i, axis in enumerate(hidden)}
    return [[[layers]], batch, [[units]]]


def _begin(state: Layout | None, hidden: list[Axis], site: Site) -> None:
    """An initial state of zeros is any units'; another one is that of the single layer, or pins them all."""
    if state is None or id(state) in site.uniform:
        return
    if len(hidden) == 1:
        unify(expand(state[-1]), hidden[0])
        return
    for axis in (*hidden, state[-1]):
        pin(axis, "initial state of several layers")
