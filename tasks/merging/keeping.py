"""A merge as a stored run of one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from storage.rounds.commits import Score, UpdateRecord
from storage.rounds.schema import Schema
from storage.rounds.store import RoundStore
from storage.values.digests import match_digest, update_digest
from storage.values.layout import Layout
from storage.values.state import Match, State, Update
from storage.values.tensors import pack, specs_of
from tasks.matching.groups import Tensors
from tasks.networks.objective import layout_of


def keep_merge(
    path: Path,
    network: nn.Module,
    states: Sequence[Tensors],
    matches: Sequence[Match],
    merged: Tensors,
    attributes: Mapping[str, Any],
    scored: Score | None,
) -> RoundStore:
    """Store a merge as a run of one round, in which the first network is the state before it.

    Each network is an update, the first one minus itself, with the permutation that was found for it; the merged
    network is the state after the round.
    """
    layout = _merge_layout(network)
    packed = [(pack(layout.params, state), pack(layout.buffers, state)) for state in states]
    schema = Schema(layout, len(states), matches=specs_of(matches[0].permutation.items()))
    initial = State(params=packed[0][0], buffers=packed[0][1])
    store = RoundStore.create(path, schema, 1, attributes, initial)
    records = {}
    for number, ((params, buffers), match) in enumerate(zip(packed, matches, strict=True)):
        direction = {dtype: start - params[dtype] for dtype, start in packed[0][0].items()}
        update = Update(direction, buffers)
        store.write_update(1, number, update)
        store.write_match(1, number, match)
        records[number] = UpdateRecord(update_digest(update), 1, match=match_digest(match))
    state = replace(initial, params=pack(layout.params, merged), buffers=pack(layout.buffers, merged), round=1)
    store.write_state(state)
    store.commit(replace(store.describe(state, "merge", 0), updates=records, score=scored))
    return store


def _merge_layout(network: nn.Module) -> Layout:
    """Where tensors lie: frozen parameters are merged like others, integers, without a direction, as buffers."""
    layout = layout_of(network)
    kinds = [(spec, getattr(torch, spec.dtype).is_floating_point) for spec in (*layout.params, *layout.frozen)]
    integers = tuple(spec for spec, floating in kinds if not floating)
    floats = tuple(spec for spec, floating in kinds if floating)
    return replace(layout, params=floats, frozen=(), buffers=layout.buffers + integers)
