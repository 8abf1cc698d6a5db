"""Stores a merge as a run of one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import Score, UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import match_digest, update_digest
from roundweave.storage.values.state import Layout, Match, Update, layout_of
from roundweave.storage.values.tensors import specs_of, views
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.networks.objective import packed_state


def persist_merge(
    address: str,
    layout: Layout,
    states: Sequence[Tensors],
    matches: Sequence[Match],
    merged: Tensors,
    attributes: Mapping[str, Any],
    scored: Score | None,
) -> RoundStore:
    """Store a merge as a run of one round, which begins with the first network and ends with the merged one.

    `states` and `merged` are named tensors of the network's shapes, and `layout` is its `merge_layout`. Each
    network is stored as an update, the first network minus itself, with its match. One network is in memory at a
    time.
    """
    schema = Schema(layout, len(states), matches=specs_of(matches[0].permutation.items()))
    store = RoundStore.create(address, schema, 1, attributes, packed_state(layout, states[0]))
    records = {
        number: _persisted(store, number, _update(layout, states[0], state), match)
        for number, (state, match) in enumerate(zip(states, matches, strict=True))
    }
    state = replace(packed_state(layout, merged), round=1)
    store.tensors.write_state(state)
    store.commit(replace(store.describe(state, "merge", 0), updates=records, score=scored))
    store.show()
    return store


def _update(layout: Layout, start: Tensors, tensors: Tensors) -> Update:
    """Return a network as an update: the start minus the network, computed in the network's memory."""
    arrived = packed_state(layout, tensors)
    for name, values in views(layout.params, arrived.params).items():
        torch.sub(start[name], values, out=values)
    return Update(arrived.params, arrived.buffers)


def _persisted(store: RoundStore, number: int, update: Update, match: Match) -> UpdateRecord:
    store.tensors.write_updates(1, {number: update})
    store.tensors.write_matches(1, {number: match})
    return UpdateRecord(update_digest(update), 1, match=match_digest(match))


def merge_layout(network: nn.Module) -> Layout:
    """The layout for a merge: frozen parameters are merged like others, and integer ones are stored as buffers."""
    layout = layout_of(network)
    kinds = [(spec, getattr(torch, spec.dtype).is_floating_point) for spec in (*layout.params, *layout.frozen)]
    integers = tuple(spec for spec, floating in kinds if not floating)
    floats = tuple(spec for spec, floating in kinds if floating)
    return replace(layout, params=floats, frozen=(), buffers=layout.buffers + integers)
