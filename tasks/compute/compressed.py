"""Directions in few bytes: values are rounded to fewer bits, left out, or replaced by factors of low rank.

With error feedback, what was not sent is added to the partition's next direction. Whoever receives a packed
direction unpacks the same bits as its sender, on any hardware: unpacking rounds each element by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import (
    Record,
    Slots,
    Specs,
    TensorSpec,
    Vectors,
    pack,
    tensor_bytes,
    vector_sizes,
    views,
)
from roundweave.tasks.algorithms.algebra import OWN, says
from roundweave.tasks.algorithms.maps.wrapping import Wrapping
from roundweave.tasks.numerics.pieces import accumulator

SLOT = "compression_error"
"""The carry of what a partition has not sent yet, one vector (element,) per dtype."""

Sent = Mapping[str, torch.Tensor]
"""The tensors that are sent in place of one piece of a direction, by name."""


@dataclass(frozen=True)
class Compressor:
    """How a direction is packed, piece by piece; a piece is a named tensor of the network, flattened."""

    error_feedback: ClassVar[bool] = True
    """Whether partitions carry what was lost, and add it to their next direction; else it is rounding alone."""

    def pieces(self, specs: Specs) -> Specs:
        """What is packed by itself of a network with these tensors."""
        return specs

    def pack(self, spec: TensorSpec, values: torch.Tensor, seed: int) -> Sent:
        """What is sent of a piece, whose finite values (element,) are in the accumulator type of its dtype."""
        raise NotImplementedError

    def unpack(self, spec: TensorSpec, sent: Sent, seed: int) -> torch.Tensor:
        """The values (element,), in the piece's dtype, that `sent` stands for."""
        raise NotImplementedError


@dataclass(frozen=True)
class OfVectors(Compressor):
    """The base class of compressors of which a piece is the vector of a dtype, with all tensors of that dtype."""

    def pieces(self, specs: Specs) -> Specs:
        return tuple(TensorSpec(dtype, dtype, (size,)) for dtype, size in vector_sizes(specs).items())


@dataclass(frozen=True)
class BFloat16(OfVectors):
    """Values rounded to the nearest of bfloat16, 2 bytes each; those of 2 bytes already are sent as they are."""

    error_feedback = False

    def pack(self, spec: TensorSpec, values: torch.Tensor, seed: int) -> Sent:
        dtype = _dtype(spec)
        return {"values": values.to(torch.bfloat16 if dtype.itemsize > 2 else dtype)}

    def unpack(self, spec: TensorSpec, sent: Sent, seed: int) -> torch.Tensor:
        return sent["values"].to(_dtype(spec))


@dataclass(frozen=True)
class Int8(Compressor):
    """Multiples, from -127 to 127, of a power of two for each tensor, 1 byte each (Alistarh 2017, section 3).

    The power is the least of which the largest value is at most 127 multiples. Each value becomes one of the two
    multiples around it, drawn from the map's seed so that the mean is the value. Products with a power are exact.
    """

    error_feedback = False

    def pack(self, spec: TensorSpec, values: torch.Tensor, seed: int) -> Sent:
        fraction, exponent = math.frexp(values.abs().max().item() if values.numel() else 0.0)
        exponent -= 7 - (fraction > 127 / 128)
        multiples = np.ldexp(values.numpy(), -exponent)
        below = np.floor(multiples)
        draws = torch.rand(spec.size, dtype=values.dtype, generator=_generator(seed)).numpy()
        drawn = (below + (draws < multiples - below)).astype(np.int8)
        return {"exponent": torch.tensor([exponent], dtype=torch.int16), "multiples": torch.from_numpy(drawn)}

    def unpack(self, spec: TensorSpec, sent: Sent, seed: int) -> torch.Tensor:
        multiples = sent["multiples"].to(accumulator(spec.dtype)).numpy()
        with np.errstate(over="ignore"):  # the largest values of a dtype become infinite, and are refused
            return torch.from_numpy(np.ldexp(multiples, sent["exponent"].numpy())).to(_dtype(spec))


@dataclass(frozen=True)
class Sign(Compressor):
    """The sign of each value, 1 bit, times the mean absolute value of its tensor (Karimireddy 2019, Algorithm 1).

    The sign of 0 is that of positive values.
    """

    def pack(self, spec: TensorSpec, values: torch.Tensor, seed: int) -> Sent:
        scale = values.abs().mean(dtype=torch.float64).to(_dtype(spec)).reshape(1)
        return {"scale": scale, "negative": torch.from_numpy(np.packbits(values.numpy() < 0))}

    def unpack(self, spec: TensorSpec, sent: Sent, seed: int) -> torch.Tensor:
        negative = torch.from_numpy(np.unpackbits(sent["negative"].numpy(), count=spec.size)).bool()
        return torch.where(negative, -sent["scale"], sent["scale"])


@dataclass(frozen=True)
class TopK(OfVectors):
    """A `share` of the values, those with the largest absolute values, and their places (Lin 2018, section 3.1).

    The others count as 0. At least one value is sent.
    """

    share: Annotated[float, Field(gt=0, le=1)]

    def pack(self, spec: TensorSpec, values: torch.Tensor, seed: int) -> Sent:
        places = values.abs().topk(self._count(spec)).indices.sort().values
        narrow = places.to(torch.int32 if spec.size < 1 << 31 else torch.int64)
        return {"places": narrow, "values": values[places].to(_dtype(spec))}

    def unpack(self, spec: TensorSpec, sent: Sent, seed: int) -> torch.Tensor:
        return torch.zeros(spec.size, dtype=_dtype(spec)).index_put((sent["places"].long(),), sent["values"])

    def _count(self, spec: TensorSpec) -> int:
        return min(spec.size, max(1, round(self.share * spec.size)))


@dataclass(frozen=True)
class RandomK(TopK):
    """A `share` of the values, at places that the map's seed draws anew each round, which need not be sent.

    The others count as 0 (Stich 2018, section 2). What is sent is not scaled up, as nothing is lost for good.
    """

    def pack(self, spec: TensorSpec, values: torch.Tensor, seed: int) -> Sent:
        return {"values": values[self._places(spec, seed)].to(_dtype(spec))}

    def unpack(self, spec: TensorSpec, sent: Sent, seed: int) -> torch.Tensor:
        return super().unpack(spec, {"places": self._places(spec, seed), **sent}, seed)

    def _places(self, spec: TensorSpec, seed: int) -> torch.Tensor:
        return torch.randperm(spec.size, generator=_generator(seed))[: self._count(spec)]


@dataclass(frozen=True)
class PowerSgd(Compressor):
    """Two factors of `rank` columns, P and Q, of each matrix (Vogels 2019, Algorithm 1), which is then P Q'.

    It is one step of subspace iteration: Q begins as drawn from the map's seed, P is M Q with orthonormal columns,
    and Q becomes M' P. A tensor of more axes is a matrix (first, all others). Vectors, and matrices that are no
    larger than their factors, are sent whole.
    """

    rank: Annotated[int, Field(ge=1)]

    def pack(self, spec: TensorSpec, values: torch.Tensor, seed: int) -> Sent:
        rows, columns = _matrix(spec)
        if self.rank * (rows + columns) >= spec.size:
            return {"values": values.to(_dtype(spec))}
        matrix = values.view(rows, columns).double()
        start = torch.randn(columns, self.rank, dtype=torch.float64, generator=_generator(seed))
        left = torch.linalg.qr(matrix @ start).Q
        return {"left": left.to(_dtype(spec)), "right": (matrix.T @ left).to(_dtype(spec))}

    def unpack(self, spec: TensorSpec, sent: Sent, seed: int) -> torch.Tensor:
        if "values" in sent:
            return sent["values"]
        left, right = (sent[name].to(accumulator(spec.dtype)) for name in ("left", "right"))
        matrix = left.new_zeros(_matrix(spec))
        for column in range(self.rank):  # the sums in a product of matrices would depend on the processor
            matrix += torch.outer(left[:, column], right[:, column])
        return matrix.flatten().to(_dtype(spec))


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _matrix(spec: TensorSpec) -> tuple[int, int]:
    """The rows and columns of a tensor as a matrix; a vector is one row."""
    rows = spec.shape[0] if len(spec.shape) > 1 else 1
    return rows, spec.size // max(rows, 1)


@dataclass(frozen=True)
class Packed(Record):
    """A direction as it is sent: what a compressor made of each of its `pieces`, by their names."""

    compressor: Compressor
    pieces: Specs
    sent: Mapping[str, Sent]
    seed: int

    def unpack(self) -> Vectors:
        """The direction, one vector (element,) per dtype."""
        values = {spec.name: self.compressor.unpack(spec, self.sent[spec.name], self.seed) for spec in self.pieces}
        return pack(self.pieces, values)


def packed(compressor: Compressor, specs: Specs, vectors: Vectors, seed: int) -> Packed:
    """Pack finite vectors (element,) in the accumulator type of each dtype; a `seed` draws what is random."""
    pieces = compressor.pieces(specs)
    values = {name: tensor.reshape(-1) for name, tensor in views(pieces, vectors).items()}
    sent = {spec.name: compressor.pack(spec, values[spec.name], seed) for spec in pieces}
    return Packed(compressor, pieces, sent, seed)


@dataclass(frozen=True)
class Compressed(Wrapping):
    """A map whose direction is sent packed.

    With error feedback (Seide 2014; Karimireddy 2019, Algorithm 2) a partition carries what it has not sent yet
    and adds it to its next direction. The update has the direction that was sent, as whoever receives it unpacks
    it, and beside it the packed one, of which the metric ``packed_bytes`` tells the size. Extras and buffers are
    sent as they are.

    >>> from roundweave import LocalSteps
    >>> Compressed(LocalSteps(local_steps=5), Sign()).carry, Compressed(LocalSteps(local_steps=5), Int8()).carry
    (('compression_error',), ())
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        name = type(self.map).__name__
        if OWN in self.map.carry or self.map.begins_apart:
            raise UsageError(
                f"compress is for steps from a network that all share, and with map {name} each partition has its "
                "own; leave compress out"
            )
        if self._errors and self.map.fetch_ends_carry and self.map.carry:
            raise UsageError(
                f"map {name} forgets what it carries when it fetches, and compress must not; give fetch_every = "
                "push_every, or leave compress out"
            )

    @property
    def carry(self) -> tuple[str, ...]:
        """What the map carries, and what was not sent yet, each one vector (elements,) per dtype."""
        return (*self.map.carry, *self._errors)

    @property
    def _errors(self) -> tuple[str, ...]:
        return (SLOT,) if self.compressor.error_feedback else ()

    @property
    def reads_extras_alone(self) -> bool:
        return says(self.map, "reads_extras_alone")

    @property
    def unit_slots(self) -> tuple[str, ...]:
        """The map's slots in the order of units, and what was not sent yet."""
        return (*self.map.unit_slots, *self._errors)

    @property
    def fetch_ends_carry(self) -> bool:
        """What was not sent yet is to be sent after a fetch, too."""
        return self.map.fetch_ends_carry and not self._errors

    def __call__(self, objective: Any, state: State, examples: Any, carry: Slots, seed: int) -> Update:
        """The map's update with the direction that is sent, one vector (elements,) per dtype.

        What is misshapen or, with the error, not finite stays as it is, for the partition to be refused.
        """
        own = {slot: vectors for slot, vectors in carry.items() if slot != SLOT}
        update, specs = self.map(objective, state, examples, own, seed), objective.layout.params
        if not isinstance(update, Update):
            return update
        if not _fit(specs, update.direction):
            return replace(update, carry={**update.carry, **{slot: {} for slot in self._errors}})
        # On the processor, which gives the same bits whatever the map was computed on.
        total = {dtype: vector.detach().cpu().to(accumulator(dtype)) for dtype, vector in update.direction.items()}
        if SLOT in carry:
            total = {dtype: vector + carry[SLOT][dtype].cpu() for dtype, vector in total.items()}
        finite = all(vector.isfinite().all() for vector in total.values())
        form = packed(self.compressor, specs, total, seed) if finite else None
        direction = form.unpack() if form else _narrow(total)
        errors = {
            slot: _narrow({k: vector - direction[k] for k, vector in total.items()}) for slot in self._errors
        }
        return replace(
            update,
            direction=direction,
            carry={**update.carry, **errors},
            metrics={**update.metrics, "packed_bytes": tensor_bytes(form)},
            packed=form,
        )


def _fit(specs: Specs, vectors: Vectors) -> bool:
    """Whether vectors (element,) have the types and sizes of these tensors."""
    wanted = {dtype: (getattr(torch, dtype), (size,)) for dtype, size in vector_sizes(specs).items()}
    return {dtype: (vector.dtype, tuple(vector.shape)) for dtype, vector in vectors.items()} == wanted


def _narrow(vectors: Vectors) -> Vectors:
    """Vectors (element,) in the types that they are named by."""
    return {dtype: vector.to(getattr(torch, dtype)) for dtype, vector in vectors.items()}
