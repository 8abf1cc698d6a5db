"""The rule of LSTM, GRU and plain recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundweave.tasks.matching.tracing.axes import Atom, Axes, concatenation, product, unify
from roundweave.tasks.matching.tracing.rules.registry import Result, Site, Unknown, rule
from roundweave.tasks.matching.tracing.rules.shapes import stack

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*GATES)
def _recurrent(site: Site, input: Axes, hx: Any, params: Sequence[Axes], num_layers: int, **more: Any) -> Result:
    """Weights are (gates x hidden, in) and (gates x hidden, hidden).

    The latter has the hidden units on both axes.
    """
    batch, time = input[:2] if more["batch_first"] else input[1::-1]
    time.pin("time")
    site.contract([time, input[-1]], [], [batch])
    directions = 2 if more["bidirectional"] else 1
    each = len(params) // (num_layers * directions)
    current, states = input[-1], []
    for layer in range(num_layers):
        first = layer * directions
        own = [params[i * each : (i + 1) * each] for i in range(first, first + directions)]
        states += [_cell(GATES[site.name], current, one) for one in own]
        current = concatenation(*states[first:])
    for begin in hx if isinstance(hx, tuple) else (hx,):
        _begin(begin, batch, states)
    return [*input[:-1], current], *(_final(states, batch) for _ in site.shapes[1:])


def _cell(gates: int, inputs: Atom, params: Sequence[Axes]) -> Atom:
    """The units of a layer, of its state as of its cell."""
    if len(params) in (3, 5):
        raise Unknown  # a last matrix projects the state, which then has other units than the cell
    unify(params[0][1], inputs)
    units = params[1][1]
    for tensor in params:
        unify(tensor[0], product(Atom(gates, "gates"), units))
    return units


def _final(units: Sequence[Atom], batch: Atom) -> Axes:
    """The axes (layer x direction, example, unit) of final states; each layer has its own units."""
    layers, own = stack([[each] for each in units])
    return [layers, batch, own]


def _begin(begin: Axes, batch: Atom, units: Sequence[Atom]) -> None:
    """Unify an initial state (layer x direction, example, unit) with the units of each layer."""
    layers, examples, hidden = begin
    unify(examples, batch)
    layers.pin("layers")
    for index, own in enumerate(units):
        unify(hidden if layers.whole is None else hidden.at(layers.whole, index), own)
