"""`roundweave merge` and `roundweave units`."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.command.arguments import Json, Trust
from flows.command.errors import clear_errors, print_json
from flows.command.options import given, with_options
from flows.command.printing.merge_tables import print_merge, print_units
from flows.command.printing.timing import quiet
from flows.config.merge import Architecture, MergeConfig, Merging
from flows.config.train import Placement
from flows.merging.result import MergeResult
from flows.merging.subject import unit_report

M_MMAP_THRESHOLD = -3
"""The parameter of glibc's `mallopt` for the size from which memory is taken from the system, and given back."""


@with_options(Architecture, Merging, Placement)
def merge_command(
    networks: Annotated[list[str], typer.Argument(help="torch or safetensors files, or stored rounds RUN@12")],
    out: Annotated[str | None, typer.Option(help="where to write the merged network: .safetensors, .pt")] = None,
    plot: Annotated[
        str | None, typer.Option(help="where to draw the path of two networks; default: by out")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Merge networks that were trained apart: match their hidden units, then average."""
    with clear_errors(as_json):
        values = given(options, Architecture, Merging, Placement)
        config = MergeConfig(networks=tuple(networks), out=out, plot=plot, trust=trust, **values)
        result = _merge(config)
        if as_json:
            print_json(result.summary())
        else:
            print_merge(result)


def _merge(config: MergeConfig) -> MergeResult:
    quiet()
    _give_back_what_is_freed()
    from flows.merging.running import merge

    with Console(stderr=True).status(f"merging {len(config.networks)} networks"):
        return merge(config)


def _give_back_what_is_freed() -> None:
    """Have glibc give the memory of freed tensors back, where it is: it keeps that of some sizes for later."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


@with_options(Architecture)
def units_command(as_json: Json = False, **options: Any) -> None:
    """Show which hidden units of a network are interchangeable, and what is pinned and why."""
    with clear_errors(as_json):
        report = unit_report(Architecture(**given(options, Architecture)))
        if as_json:
            print_json(report)
        else:
            print_units(report)
