"""Sends directions in fewer bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError
from roundweave.tasks.own_code.tables import Entry, Table, make, spelled

if TYPE_CHECKING:
    from roundweave.flows.planning.plan import Plan

HOME = "roundweave.flows.plugins.compressed.compressors"

COMPRESSORS: Table = {
    "bf16": Entry("2 bytes for each value", f"{HOME}:BFloat16"),
    "int8": Entry("1 byte for each value, a scale for each tensor (Alistarh 2017)", f"{HOME}:Int8"),
    "sign": Entry("1 bit for each value, a scale for each tensor (Karimireddy 2019)", f"{HOME}:Sign"),
    "top_k": Entry("the SHARE of values with the largest magnitudes (Lin 2018)", f"{HOME}:TopK", "SHARE"),
    "random_k": Entry("a random SHARE of the values (Stich 2018)", f"{HOME}:RandomK", "SHARE"),
    "powersgd": Entry("low-rank factors of each matrix (Vogels 2019)", f"{HOME}:PowerSgd", "RANK"),
}


class Compression(Plugin):
    """Compresses the updates that partitions send."""

    decides = True
    last = True
    tables: ClassVar = {"compressors": COMPRESSORS}

    compress: str | None = Field(
        default=None,
        description=f"compression of the updates that partitions send: {', '.join(spelled(COMPRESSORS))}",
    )

    def plan(self, plan: Plan) -> Plan:
        """Wrap the map by one that packs its directions; a compressor is named as ``sign`` or ``top_k:0.01``."""
        from roundweave.flows.plugins.compressed.compressors import Compressed

        if plan.mapper.at_once > 1 or plan.mapper.ranks > 1:
            other = plan.filled.get("mapper")
            raise UsageError(f"compress and {other} exclude each other; leave one of them out")
        compressor = make("compress", self.compress or "", COMPRESSORS)
        return plan.wrap(map=lambda inner: Compressed(inner, compressor))
