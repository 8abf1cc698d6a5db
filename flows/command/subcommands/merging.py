"""`roundweave merge` and `roundweave units`."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Annotated, Any

import typer

from roundweave.flows.config.files import RECIPES, read_recipe
from roundweave.flows.config.merging.merge import Architecture, GramConfig, MergeConfig, Merging
from roundweave.flows.merging.result import MergeResult
from roundweave.flows.merging.subjects import unit_report
from roundweave.flows.terminal.common import Json, TextTable, console, output, say
from roundweave.flows.terminal.options import with_options
from roundweave.storage.errors import cut

M_MMAP_THRESHOLD = -3
"""glibc's `mallopt` parameter: memory blocks above this size are returned to the system when they are freed."""

LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""The variable by which torch asks the system for large pages, so that new memory takes a third of the time."""


@with_options(Merging, MergeConfig, without=("networks",))
def merge_command(
    networks: Annotated[
        list[str],
        typer.Argument(
            help="files or folders of tensors, stored rounds RUN@12, or a recipe (.toml, or .yml of mergekit)"
        ),
    ],
    as_json: Json = False,
    **options: Any,
) -> None:
    """Merge networks that were trained separately: match their hidden units, then average."""
    recipe = read_recipe(networks.pop(0)) if networks[0].endswith(RECIPES) else {}
    given = {"networks": tuple(networks)} if networks or not recipe else {}
    config = MergeConfig(**recipe | given | options)
    os.environ.setdefault(LARGE_PAGES, "1")
    # glibc would keep the memory of freed tensors of some sizes; make it return it to the system.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    from roundweave.flows.merging.running import merge

    with console(stderr=True).status(f"merging {len(config.networks)} networks"):
        result = merge(config)
    output(as_json, result.summary(), _print_merge, result)


def _print_merge(result: MergeResult) -> None:
    """Print each network's scores, how many units moved, and where the results are."""
    rows = [
        {
            "network": name,
            "loss": score.loss,
            "accuracy": score.accuracy,
            "barrier": result.barriers.get(name, ""),
        }
        for name, score in result.scores.items()
    ]
    console().print(TextTable(rows) if rows else "no data were given, so nothing is scored")
    if units := result.free_units + result.pinned_units:
        moved = ", ".join(f"{share:.0%}" for share in result.moved[1:])
        free = f"{result.free_units:,} of {units:,} units are free"
        say(f"units moved: {moved}; {result.coverage:.0%} of the tensors can be permuted, {free}")
        say(f"function error {result.function_error:.1e} (float64, relative)")
    else:
        say("no units were matched: tensors were averaged by their names")
    if result.scores:
        say(
            f"taken: {result.chosen}" + ", with the least held-out loss of all merges" * (result.average == "auto")
        )
    if len(set(result.coefficients)) > 1:
        say("coefficients: " + ", ".join(f"{c:.3g}" for c in result.coefficients))
    for what, place in (("merged network", result.out), ("plot", result.plot)):
        if place:
            say(f"{what}: {place}")
    if result.run:
        say(f"stored with its permutations as run {result.run.name}, in {result.run.address}")


@with_options(GramConfig, without=("network",))
def gram_command(
    network: Annotated[
        str, typer.Argument(help="a torch or safetensors file, a transformers folder, or a stored round RUN@12")
    ],
    as_json: Json = False,
    **options: Any,
) -> None:
    """Write the Gram matrices of a network's layer inputs, for a merge without the examples."""
    from roundweave.flows.merging.grams import write_gram_file

    written = write_gram_file(GramConfig(network=network, **options))
    output(as_json, written, _print_grams, written)


def _print_grams(written: dict[str, Any]) -> None:
    """Print of which layers the matrices are, and where they are."""
    rows = [{"layer": name, "gram": " x ".join(map(str, shape))} for name, shape in written["layers"].items()]
    console().print(TextTable(rows))
    say(f"{written['out']}: {written['bytes']:,} bytes, from {written['examples']:,} examples (not included)")


@with_options(Architecture)
def units_command(as_json: Json = False, **options: Any) -> None:
    """Show the interchangeable hidden units of a network, and the reasons why others are fixed."""
    report = unit_report(Architecture(**options))
    output(as_json, report, _print_units, report)


def _print_units(report: dict[str, Any]) -> None:
    """Print the groups of interchangeable units, the pinned tensors, and the numbers of free and pinned units."""
    out = console()
    rows = []
    for name, group in report["groups"].items():
        tensors = list(dict.fromkeys(f"{m['tensor']}[{m['axis']}]" for m in group["members"]))
        within = ", ".join(group["depends_on"]) or "–"
        shown = ", ".join(cut(tensors, 4))
        rows.append({"group": name, "units": group["units"], "within each of": within, "tensors": shown})
    out.print(TextTable(rows) if rows else "no interchangeable units")
    if report["pinned"]:
        out.print(TextTable([{"pinned tensor": name, "why": why} for name, why in report["pinned"].items()]))
    for operation, place in report["unknown"].items():
        say(f"operation {operation} is not understood; it stands at {place}", style="yellow")
    counts = {"free": report["free_units"], **{f"pinned: {w}": n for w, n in report["pinned_units"].items()}}
    out.print(TextTable([{"units": f"{count:,}", "": what} for what, count in counts.items()]))
    say(
        f"{report['coverage']:.0%} of the tensors can be permuted; function error {report['function_error']:.1e} "
        f"(float64, relative); {report['seconds']:.2f} s"
    )
