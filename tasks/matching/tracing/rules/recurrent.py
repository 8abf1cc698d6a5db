"""Rules of LSTM, GRU and plain recurrent layers and of their single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.matching.tracing.axes import (
    Atom,
    Axes,
    Axis,
    broadcast,
    choose,
    expand,
    length,
    lone_atom,
    new_axis,
    pin,
    unify,
)
from tasks.matching.tracing.rules.registry import Result, Site, rule

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*GATES)
def _recurrent(
    site: Site,
    input: Axes,
    hx: Any,
    params: Sequence[Axes],
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
    **_: Any,
) -> Result:
    """Weights are (gates x hidden, in) and (gates x hidden, hidden).

    The latter has the hidden units on both axes.
    """
    batch, time = input[:2] if batch_first else input[1::-1]
    pin(time, "time")
    site.contract([time, input[-1]], [], [batch])
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    current, hidden, cells = input[-1], [], []
    for layer in range(num_layers):
        first = layer * directions * each
        own = [params[first + i * each : first + (i + 1) * each] for i in range(directions)]
        pairs = [_cell(GATES[site.name], current, one) for one in own]
        hidden += [state for state, _ in pairs]
        cells += [cell for _, cell in pairs]
        current = [segment for state, _ in pairs for segment in state]
    for state, units in zip(hx if isinstance(hx, tuple) else (hx,), (hidden, cells), strict=False):
        _begin(state, batch, units, site)
    outputs, final = [*input[:-1], current], _final(hidden, batch)
    return (outputs, final, _final(cells, batch)) if site.name == "lstm" else (outputs, final)


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def _step(site: Site, input: Axes, hx: Any, w_ih: Axes, w_hh: Axes, **biases: Axes | None) -> Axes:
    params = [w_ih, w_hh, *(bias for bias in biases.values() if bias is not None)]
    units, _ = _cell(GATES[site.name.removesuffix("_cell")], input[-1], params)
    site.contract([input[-1]], [], input[:-1])
    states = hx if isinstance(hx, tuple) else (hx,)
    return broadcast([*input[:-1], units], *states)


def _cell(gates: int, inputs: Axis, params: Sequence[Axes]) -> tuple[Axis, Axis]:
    """The units of a layer's state and of its cell, which are the same unless a last matrix projects the state."""
    projection = params[-1] if len(params) in (3, 5) else None
    state = params[1][1]
    cell: Axis = [[Atom(length(params[0][0]) // gates)]]
    for tensor in params[: len(params) - (projection is not None)]:
        unify(tensor[0], [[Atom(gates, "gates"), *cell[0]]])
    unify(params[0][1], inputs)
    unify(state, cell if projection is None else projection[0])
    if projection is not None:
        unify(projection[1], cell)
    return expand(state), expand(cell)


def _final(hidden: list[Axis], batch: Axis) -> Axes:
    """The axes (layer x direction, example, unit) of final states; each layer has its own units, as a choice."""
    if len(hidden) == 1:
        return [new_axis(1), batch, hidden[0]]
    layers, units = Atom(len(hidden), "layers"), Atom(length(hidden[0]))
    if all(lone_atom(axis) is not None for axis in hidden):
        units.chosen[layers] = {i: expand(axis)[0][0] for i, axis in enumerate(hidden)}
    else:
        for axis in hidden:
            unify(axis, [[units]])
    return [[[layers]], batch, [[units]]]


def _begin(state: Axes | None, batch: Axis, hidden: list[Axis], site: Site) -> None:
    """Unify an initial state with the hidden units of each layer; nothing to do if all its elements are equal."""
    if state is None or id(state) in site.uniform:
        return
    unify(state[1], batch)
    pin(state[0], "layers")
    layers = lone_atom(state[0])
    for index, axis in enumerate(hidden):
        unify(state[-1] if layers is None else choose(state[-1], layers, index), axis)
