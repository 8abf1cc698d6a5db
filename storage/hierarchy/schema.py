"""The zarr hierarchy of a run: names, dimensions and chunks. Pure descriptions, no input or output.

Every array over rounds has a row for each round and row 0 for the initial state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from storage.parsing import EXACTLY, MOST_PARTITIONS, validated
from storage.values.layout import Layout, Rows
from storage.values.tensors import RAW, Specs, TensorSpec, sizes

VERSION = 8


REPORTED = ("metrics", "scores")
"""Groups of numbers whose names maps and scores give."""


NUMBERS = {
    **{"round": "int64", "committed": "bool", "commits": "int64", "bookkeeping/seconds": "float64"},
    **dict.fromkeys(("bookkeeping/weight", "bookkeeping/accepted", "bookkeeping/map_seconds"), "partition"),
}
"""The arrays of numbers that every run has, and the type of their numbers; ``partition``: one for each of them."""


METRIC_ROWS = 1024
"""Rounds a chunk of numbers at most: a thousand rounds are read with a request an array."""


METRIC_BYTES = 1 << 16
"""Bytes of a chunk of numbers, unless a single round has more: it is written anew each second, in some 0.2 ms."""


MOST_SLOTS = 1_000
"""Slots of a kind: an optimizer has a few, and each is as many tensors as the network."""


CODECS: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
"""Of every chunk."""


@dataclass(frozen=True)
class ArraySpec:
    """One array; `dtype` is the logical one, `dims` names its dimensions."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dims: tuple[str, ...]

    @property
    def over_rounds(self) -> bool:
        """Whether it has a chunk for each round, or for each (round, partition)."""
        return self.dims[:1] == ("round",) and self.chunks[0] == 1

    @property
    def by_partition(self) -> bool:
        """Whether it has a chunk for each (round, partition)."""
        return self.over_rounds and self.dims[1:2] == ("partition",)

    @property
    def stored(self) -> str:
        """The dtype of the stored bytes."""
        return RAW.get(self.dtype, self.dtype)

    @property
    def fill(self) -> Any:
        """What zarr reads where no chunk is: NaN, False or 0. Presence is decided by the commit, never by this."""
        return "NaN" if self.stored.startswith("float") else False if self.stored == "bool" else 0

    def metadata(self) -> dict[str, Any]:
        """The content of its zarr.json (zarr v3): plain bytes and a checksum, no compressor."""
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.stored,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill,
            "codecs": CODECS,
            "dimension_names": list(self.dims),
            "attributes": {"logical_dtype": self.dtype},
        }


Slots = Annotated[tuple[str, ...], Field(max_length=MOST_SLOTS)]


@dataclass(frozen=True)
class Schema:
    """What a run stores; `memory`, `carry` and `extras` name slots that are shaped as the parameters.

    `matches` has a spec for each group of units that a reduce matches: the group's name, and dtype and shape of
    its permutation.
    """

    __pydantic_config__ = EXACTLY

    layout: Layout
    partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)]
    memory: Slots = ()
    carry: Slots = ()
    extras: Slots = ()
    matches: Rows = ()

    def state(self, rows: int) -> dict[str, ArraySpec]:
        """The arrays of the state by path; frozen parameters are stored once, without a round."""
        groups = {"params": self.layout.params, "buffers": self.layout.buffers}
        groups |= {f"memory/{slot}": self.layout.params for slot in self.memory}
        arrays = [_per_round(group, spec, rows) for group, specs in groups.items() for spec in specs]
        frozen = [
            ArraySpec(f"frozen/{s.name}", s.dtype, s.shape, s.shape, _axes(s.name, s.shape))
            for s in self.layout.frozen
        ]
        return {array.path: array for array in (*arrays, *frozen)}

    def vectors(self, rows: int) -> dict[str, ArraySpec]:
        """The arrays of updates and carries by path: one chunk for each (round, partition)."""
        groups: dict[str, Specs] = {"updates": self.layout.params, "updates/buffers": self.layout.buffers}
        groups |= {f"updates/extras/{name}": self.layout.params for name in self.extras}
        groups |= {f"carry/{slot}": self.layout.params for slot in self.carry}
        return {
            f"{group}/{dtype}": ArraySpec(
                f"{group}/{dtype}",
                dtype,
                (rows, self.partitions, size),
                (1, 1, size),
                ("round", "partition", f"{group}/{dtype}.element"),
            )
            for group, specs in groups.items()
            for dtype, size in sizes(specs).items()
        }

    def matching(self, rows: int) -> dict[str, ArraySpec]:
        """The arrays of permutations and similarities by path: one chunk for each (round, partition)."""
        arrays = [self._match("permutations", s.name, s.dtype, s.shape, rows) for s in self.matches]
        # A mixture has a row a unit, so its similarities drop the last dimension; a permutation's do not.
        arrays += [
            self._match("similarities", s.name, "float32", s.shape[:1] if s.dtype == "float32" else s.shape, rows)
            for s in self.matches
        ]
        return {array.path: array for array in arrays}

    def _match(self, kind: str, group: str, dtype: str, shape: tuple[int, ...], rows: int) -> ArraySpec:
        path = f"{kind}/{group}"
        return ArraySpec(
            path,
            dtype,
            (rows, self.partitions, *shape),
            (1, 1, *shape),
            ("round", "partition", *_axes(path, shape)),
        )

    def numbers(self, rows: int) -> dict[str, ArraySpec]:
        """The arrays of numbers that every run has, by path: coordinates and bookkeeping."""
        return {path: self.number(path, rows) for path in NUMBERS}

    def number(self, path: str, rows: int) -> ArraySpec:
        """One of them, or of the metrics and scores: of a number a round, or of each (round, partition)."""
        if path.startswith("metrics/") or NUMBERS.get(path) == "partition":
            shape, chunks = (rows, self.partitions), (self.block, self.partitions)
            return ArraySpec(path, "float64", shape, chunks, ("round", "partition"))
        dtype = NUMBERS.get(path, "float64")
        return ArraySpec(path, dtype, (rows,), (METRIC_ROWS if path == "round" else self.block,), ("round",))

    @property
    def block(self) -> int:
        """The rounds of a chunk of numbers, of which a round may have one for each partition."""
        return min(METRIC_ROWS, max(1, METRIC_BYTES // (8 * self.partitions)))

    def tensors(self, rows: int) -> dict[str, ArraySpec]:
        """The arrays of tensors by path: the state, updates and carries, and how units were matched."""
        return self.state(rows) | self.vectors(rows) | self.matching(rows)

    def arrays(self, rows: int) -> dict[str, ArraySpec]:
        """Every array that the run has from its start, by path, for so many rows."""
        return self.tensors(rows) | self.numbers(rows)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` rebuilds the schema."""
        slots = {"memory": list(self.memory), "carry": list(self.carry), "extras": list(self.extras)}
        matches = [[s.name, s.dtype, list(s.shape)] for s in self.matches]
        return {"layout": self.layout.to_json(), "partitions": self.partitions, **slots, "matches": matches}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Schema:
        """The inverse of `to_json`; raises `ValueError` for what no schema says."""
        return validated(SCHEMA, json.dumps(value))


SCHEMA = TypeAdapter(Schema)


def split_array(number: int, examples: int) -> ArraySpec:
    """Which partition each example went to under a split; -1 for those held out."""
    shape = (examples,)
    return ArraySpec(f"partitions/{number}", "int32", shape, shape, ("example",))


def _per_round(group: str, spec: TensorSpec, rows: int) -> ArraySpec:
    return ArraySpec(
        f"{group}/{spec.name}",
        spec.dtype,
        (rows, *spec.shape),
        (1, *spec.shape),
        ("round", *_axes(spec.name, spec.shape)),
    )


def _axes(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{name}.{axis}" for axis in range(len(shape)))
