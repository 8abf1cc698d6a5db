"""The arrays of a run: their paths, dtypes, dimensions and chunks. Nothing here reads or writes files.

Every array over rounds has one row for each round, and row 0 for the initial state.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from roundweave.storage.parsing import EXACTLY, MOST_PARTITIONS, parse
from roundweave.storage.values.state import OBSERVED, Layout, Rows, json_rows
from roundweave.storage.values.tensors import RAW, Specs, TensorSpec, specs_bytes, vector_sizes

VERSIONS = UNPACKED, _, VERSION = 10, 11, 12
"""The store versions that can be read.

Version 10 has a file for each record. When a run of version 10 or 11 goes on, its `COPIES` are replaced.
"""


GROUPS = ("scores", "metrics", "bookkeeping")
"""The groups of the arrays that show the numbers of rounds to plain zarr and xarray."""

COPIES = ("commits/copied.json", "metrics", "bookkeeping")
"""Copies of the numbers of each partition in stores before version 12. Nobody reads them any more."""


ROWS = 1024
"""The most rounds in a chunk of numbers."""


MOST_SLOTS = 1_000
"""The most slots of one kind (memory, carry, extras). An optimizer has a few, each as large as the network."""


MOST_SHARDS, SHARDS_OF_PROCESS = 32, 8
"""The number of files of a round's updates, and the number for each process if that is larger.

With fewer files for each process, some processes would have many more partitions to map than others. Rounds that
ask some partitions, but more than the first number, have at most the second number for each process, because they
are short.
"""


SHARD_BYTES, SHARD_PARTITIONS = 1 << 26, 1 << 11
"""The most bytes of a shared file on average, in rounds that ask some partitions, and its most partitions.

The bytes are in memory until the file is written. Reading one partition reads the index of all.
"""


CODECS: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
"""The codecs of every chunk: plain little-endian bytes and a checksum."""


@dataclass(frozen=True)
class ArraySpec:
    """One array: its path, logical dtype, shape, shape of its chunks, and names of its dimensions.

    In an array by partition, the chunks of `shard` neighbouring partitions lie in one file.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dims: tuple[str, ...]
    shard: int = 1

    @property
    def over_rounds(self) -> bool:
        """Whether the array has one chunk for each round, or for each (round, partition)."""
        return self.dims[:1] == ("round",) and self.chunks[0] == 1

    @property
    def by_partition(self) -> bool:
        """Whether the array has one chunk for each (round, partition)."""
        return self.over_rounds and self.dims[1:2] == ("partition",)

    @property
    def file(self) -> tuple[int, ...]:
        """The shape of the content of one file: a chunk, or the chunks of a shard's partitions."""
        return self.chunks if self.shard == 1 else (1, self.shard, *self.chunks[2:])

    def held(self, numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the indices of the chunks in a file of an array over rounds, (round,) or (round, partition).

        `numbers` are those in the file's key.
        """
        if not self.by_partition or len(numbers) == 1:
            return [numbers[:1]]
        first = numbers[1] * self.shard
        return [(numbers[0], partition) for partition in range(first, min(first + self.shard, self.shape[1]))]

    @property
    def stored(self) -> str:
        """The dtype of the stored bytes. It differs from `dtype` for bfloat16, which is stored as uint16."""
        return RAW.get(self.dtype, self.dtype)

    @property
    def fill(self) -> Any:
        """The value that zarr reads for a missing chunk: NaN, False or 0.

        The commit records decide whether a value exists. Comparing with this value does not.
        """
        return "NaN" if self.stored.startswith("float") else False if self.stored == "bool" else 0

    def metadata(self) -> dict[str, Any]:
        """Return the content of the array's ``zarr.json`` document, as a JSON object."""
        inner = {"chunk_shape": list(self.chunks), "codecs": CODECS, "index_codecs": CODECS}
        sharding = {"name": "sharding_indexed", "configuration": {**inner, "index_location": "start"}}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.stored,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.file)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill,
            "codecs": CODECS if self.shard == 1 else [sharding],
            "dimension_names": list(self.dims),
            "attributes": {"logical_dtype": self.dtype},
        }


Slots = Annotated[tuple[str, ...], Field(max_length=MOST_SLOTS)]


@dataclass(frozen=True)
class Schema:
    """What a run stores: the layout of its network, the number of partitions, and the slots of its algorithm.

    `memory`, `carry` and `extras` are names of slots. Each slot has the shapes of the parameters. `matches` has
    one spec for each unit group that a reduce matches: the name of the group, and dtype and shape of its
    permutation. `observed` has one spec for each tensor that maps observe for the reduce. The updates of `shard`
    neighbouring partitions lie in one file, and so do their carries and matches.
    """

    __pydantic_config__ = EXACTLY

    layout: Layout
    partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)]
    memory: Slots = ()
    carry: Slots = ()
    extras: Slots = ()
    matches: Rows = ()
    observed: Rows = ()
    shard: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)] = 1

    def sharded(self, processes: int = 1, updates: int = 0) -> Schema:
        """Return the schema with as few files as suit so many processes that write them.

        A round stores `updates` updates; 0 means those of all partitions. Of the sizes from the least to twice the
        least, the schema has the one with which partitions are most often halved into whole shards. A block that
        is such a half sends a single vector to the reduce.
        """
        updates, files = updates or self.partitions, SHARDS_OF_PROCESS * processes
        files = files if MOST_SHARDS < updates < self.partitions else max(MOST_SHARDS, files)
        stored = (self.update_bytes + 2 * specs_bytes(self.matches)) * updates
        most = min(SHARD_PARTITIONS, max(1, SHARD_BYTES * self.partitions // max(1, stored)))
        least = min(-(-self.partitions // files), most)
        largest = min(2 * least, most + 1)

        def parts(shard: int) -> int:
            count, rest = divmod(self.partitions, shard)
            return 0 if rest else count & -count  # the largest power of two that divides the count

        return replace(self, shard=max(range(least, largest), key=parts))

    def state(self, rows: int) -> dict[str, ArraySpec]:
        """Return the arrays of the state by path, with `rows` rows.

        Frozen parameters are stored once, without rows.
        """
        groups = {"params": self.layout.params, "buffers": self.layout.buffers}
        groups |= {f"memory/{slot}": self.layout.params for slot in self.memory}
        lead = {"round": rows}
        arrays = [_array(f"{group}/{s.name}", s, lead) for group, specs in groups.items() for s in specs]
        arrays += [_array(f"frozen/{s.name}", s, {}) for s in self.layout.frozen]
        return {array.path: array for array in arrays}

    def sent(self) -> dict[str, Specs]:
        """Return the tensors of an update and of the carry after it, by the path of their group."""
        groups: dict[str, Specs] = {"updates": self.layout.params, "updates/buffers": self.layout.buffers}
        groups |= {f"updates/extras/{name}": self.layout.params for name in self.extras}
        groups |= {OBSERVED: self.observed} if self.observed else {}
        return groups | {f"carry/{slot}": self.layout.params for slot in self.carry}

    def vectors(self, rows: int) -> dict[str, ArraySpec]:
        """Return the arrays of updates and carries by path, (round, partition, element).

        Each partition has a chunk.
        """
        lead = {"round": rows, "partition": self.partitions}
        arrays = {}
        for group, specs in self.sent().items():
            for dtype, size in vector_sizes(specs).items():
                path = f"{group}/{dtype}"
                shape, dims = (*lead.values(), size), (*lead, f"{path}.element")
                arrays[path] = ArraySpec(path, dtype, shape, (1, 1, size), dims, self.shard)
        return arrays

    def matching(self, rows: int) -> dict[str, ArraySpec]:
        """Return the arrays of permutations and similarities by path, (round, partition, …).

        Each partition has a chunk. A float32 match is a mixture, (unit, unit), with similarities (unit,). The
        similarities of a permutation have the permutation's shape.
        """
        lead = {"round": rows, "partition": self.partitions}
        arrays = {}
        for spec in self.matches:
            similarity = TensorSpec(spec.name, "float32", spec.shape[: 1 if spec.dtype == "float32" else None])
            for kind, stored in (("permutations", spec), ("similarities", similarity)):
                path = f"{kind}/{spec.name}"
                arrays[path] = replace(_array(path, replace(stored, name=path), lead), shard=self.shard)
        return arrays

    @functools.cached_property
    def state_bytes(self) -> int:
        """The bytes of the state of one round, without frozen parameters, which are stored once."""
        layout = self.layout
        return specs_bytes(layout.params) * (1 + len(self.memory)) + specs_bytes(layout.buffers)

    @functools.cached_property
    def update_bytes(self) -> int:
        """The bytes of one partition's update, with the carry after it."""
        return sum(map(specs_bytes, self.sent().values()))

    def stored_bytes(self, states: int, updates: int) -> int:
        """Return the bytes of the tensors of so many states and so many updates of single partitions."""
        return specs_bytes(self.layout.frozen) + states * self.state_bytes + updates * self.update_bytes

    def tensors(self, rows: int) -> dict[str, ArraySpec]:
        """Return the arrays of tensors by path: states, updates, carries and matches."""
        return self.state(rows) | self.vectors(rows) | self.matching(rows)

    def arrays(self, rows: int) -> dict[str, ArraySpec]:
        """Return every array that a run has from its start, by path, with `rows` rows."""
        return self.tensors(rows) | {path: number_array(path, rows) for path in ("round", "committed", "commits")}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object from which `from_json` rebuilds the schema."""
        slots = {"memory": list(self.memory), "carry": list(self.carry), "extras": list(self.extras)}
        matches, observed = (json_rows(specs) for specs in (self.matches, self.observed))
        value = {"layout": self.layout.to_json(), "partitions": self.partitions, **slots, "matches": matches}
        value |= {"observed": observed} if observed else {}
        return value | ({"shard": self.shard} if self.shard > 1 else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Schema:
        """Rebuild a schema from what `to_json` gave. Raises `ValueError` for anything else."""
        return parse(cls, json.dumps(value))


def number_array(path: str, rows: int) -> ArraySpec:
    """Return the array of numbers at a path, (round,): a coordinate, a score, a metric or bookkeeping."""
    dtype = "bool" if path == "committed" else "float64" if "/" in path else "int64"
    return ArraySpec(path, dtype, (rows,), (ROWS,), ("round",))


def split_array(number: int, examples: int) -> ArraySpec:
    """Return the array (example,) with the partition of each example under split `number`.

    -1 for those held out.
    """
    shape = (examples,)
    return ArraySpec(f"partitions/{number}", "int32", shape, shape, ("example",))


def _array(path: str, spec: TensorSpec, lead: Mapping[str, int]) -> ArraySpec:
    """Return the array of a tensor of each round, or of each (round, partition).

    `lead` has the sizes of these axes.
    """
    axes = (f"{spec.name}.{axis}" for axis in range(len(spec.shape)))
    shape, chunks = (*lead.values(), *spec.shape), (*(1 for _ in lead), *spec.shape)
    return ArraySpec(path, spec.dtype, shape, chunks, (*lead, *axes))
