"""Computes maps on a device, in another precision, or by compiled networks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan


class Device(Plugin):
    """Trains on an accelerator, in another precision, or with compiled networks."""

    decides = True
    last = True

    device: str = Field(
        default="cpu",
        pattern=r"^[a-z]\w*(:\d+)?$",
        description="device to train on: cpu, cuda, cuda:1, mps, xpu; auto: the accelerator that all workers have",
    )
    precision: Literal["float32", "bf16", "fp16"] = Field(
        default="float32",
        description="precision of forward passes: float32 (full), bf16 (autocast), fp16 (autocast, scaled loss)",
    )
    compiled: bool = Field(default=False, description="compile the network with torch.compile")

    def fits(self, config: TrainConfig) -> None:
        """Refuse a precision of parameters that are not in float32."""
        if self.precision != "float32" and config.dtype != "float32":
            raise ValueError(f"precision {self.precision} is for parameters in float32, not in {config.dtype}")

    def plan(self, plan: Plan) -> Plan:
        """Compute on the device what the mapper does, with scaled losses in float16."""
        inner, other = plan.mapper, plan.filled.get("mapper")
        fp16 = self.precision == "fp16"
        alone = "precision fp16" if fp16 and inner.at_once > 1 else "compiled" if self.compiled else None
        if alone and (inner.at_once > 1 or inner.ranks > 1):
            raise UsageError(f"{alone} and {other} exclude each other; leave one of them out")
        if inner.ranks > 1:
            given = f"device {self.device}" if self.precision == "float32" else f"precision {self.precision}"
            if given not in ("device cpu", "device auto"):
                why = "ranks share a network on processors, in its own dtype"
                raise UsageError(f"{why}; leave {given} out, or {other}")
            return replace(plan, mapper=replace(inner, recorded={"device": "cpu"}))
        from roundweave.flows.plugins.device.on_device import OnDevice
        from roundweave.flows.plugins.device.scaled import Scaled

        scaled = plan.wrap(map=Scaled) if fp16 else plan
        mapper = OnDevice(inner, self.precision, self.compiled, at_once=inner.at_once, device=self.device)
        return replace(scaled, mapper=mapper)
