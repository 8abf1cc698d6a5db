"""The rule of LSTM, GRU and plain recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundweave.tasks.matching.tracing.axes import Atom, Axes, concatenation, product, unify
from roundweave.tasks.matching.tracing.rules.registry import Result, Site, rule
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
    current, states, cells = input[-1], [], []
    for layer in range(num_layers):
        first = layer * directions
        own = [params[i * each : (i + 1) * each] for i in range(first, first + directions)]
        pairs = [_cell(GATES[site.name], current, one) for one in own]
        states += [state for state, _ in pairs]
        cells += [cell for _, cell in pairs]
        current = concatenation(*(state for state, _ in pairs))
    kinds = [states, cells] if site.name == "lstm" else [states]
    for begin, units in zip(hx if isinstance(hx, tuple) else (hx,), kinds, strict=True):
        _begin(begin, batch, units)
    return [*input[:-1], current], *(_final(units, batch) for units in kinds)


def _cell(gates: int, inputs: Atom, params: Sequence[Axes]) -> tuple[Atom, Atom]:
    """The units of a layer's state and of its cell, which are the same unless a last matrix projects the state."""
    projection = params[-1] if len(params) in (3, 5) else None
    state, cell = params[1][1], Atom(params[0][0].size // gates)
    for tensor in params[: len(params) - (projection is not None)]:
        unify(tensor[0], product(Atom(gates, "gates"), cell))
    unify(params[0][1], inputs)
    unify(state, cell if projection is None else projection[0])
    if projection is not None:
        unify(projection[1], cell)
    return state, cell


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
