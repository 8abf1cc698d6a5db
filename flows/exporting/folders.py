"""A round as a folder for others: its tensors, a card that says what they are, and the code that loads them."""

from __future__ import annotations

import logging
import secrets
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from roundweave.flows.config.exports import is_folder
from roundweave.flows.exporting.destinations import CARD, MARK, check_folder
from roundweave.flows.exporting.recipes import pretrained, recipe_of
from roundweave.flows.exporting.trackers import needed
from roundweave.flows.reporting.listening import shown
from roundweave.flows.stored import Round, Run
from roundweave.storage.errors import (
    ModelError,
    NotARun,
    PlaceError,
    UsageError,
    failing_as,
    located,
    one_line,
    printable,
)
from roundweave.storage.places.base import PARTIAL
from roundweave.storage.runs.listing import flat_config
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.numerics.pinning import derive_seed

TEMPLATE = Environment(
    loader=PackageLoader("roundweave.flows.exporting", "."),
    undefined=StrictUndefined,
    trim_blocks=True,
    finalize=printable,
).get_template("card.md")

LARGE = 1 << 30
"""From so many bytes on, the tensors of an ONNX file lie in another file beside it: a file has 2 GiB at most."""


def export_round(run: Run, which: Round, to: str, trust: bool = False, onnx: bool = False) -> None:
    """Write a round of a run to a checkpoint file, or to a folder as `write_folder` does."""
    if is_folder(to):
        write_folder(run, which, to, trust, onnx)
    else:
        which.save(to)


def write_folder(run: Run, which: Round, to: str, trust: bool = False, onnx: bool = False) -> Path:
    """Write a round of a run to a folder, which is replaced where an export wrote it, and return its path.

    `trust` allows running code that a store outside the root holds. Raises `UsageError` where something else lies
    there, `ModelError` where the network fails, and `PlaceError` where the folder cannot be written.
    """
    folder = check_folder(to)
    with failing_as(lambda error: PlaceError(f"{to} cannot be written: {one_line(error)}")), _new(folder) as new:
        which.save(new / "model.safetensors")
        card = TEMPLATE.render(_filled(new, run, which, trust, onnx))
        (new / CARD).write_text(f"{MARK}{card}", encoding="utf-8")
    return folder


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """A new folder beside another, whose place it takes at the end; after an error it is removed."""
    new, former = (folder.with_name(f".{secrets.token_hex(8)}{PARTIAL}") for _ in range(2))
    new.mkdir(parents=True)
    try:
        yield new
        if folder.exists():
            folder.rename(former)
        new.rename(folder)
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _filled(folder: Path, run: Run, which: Round, trust: bool, onnx: bool) -> dict[str, Any]:
    """Write the network's code and own files to a folder, and return the values of the card's template."""
    card: dict[str, Any] = {"run": run, "which": which, "facts": _facts(run, which), "recipe": None, "notes": []}
    try:
        spec = run.model(trust)
    except NotARun:
        if onnx:
            raise
        return card
    recipe, network = recipe_of(spec), which.network(trust)
    for path, content in recipe.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    save_pretrained = getattr(network, "save_pretrained", None)
    if save_pretrained:
        with failing_as(lambda error: ModelError(f"save_pretrained of {spec.name} failed with {located(error)}")):
            save_pretrained(folder)
    notes = [f"This needs {recipe.needs}; `--onnx` writes a file that does not."] * bool(recipe.needs)
    if onnx:
        write_onnx(network, spec, run.attributes["data"].get("kind", ""), folder / "model.onnx")
        notes.append("`model.onnx` is the same network, for any number of examples, to rounding.")
    loaded = pretrained(network) if save_pretrained else None
    seed = derive_seed(spec.seed, "model")
    return card | {"recipe": recipe, "pretrained": loaded, "spec": spec, "seed": seed, "notes": notes}


def _facts(run: Run, which: Round) -> dict[str, Any]:
    """What the card's table says; empty facts are left out."""
    config, data = flat_config(run.config), run.attributes["data"]
    score = which.score.row() if which.score else {}
    return {
        "run": f"{run.name}, {run.status}",
        "round": f"{which.number} of {run.rounds}",
        "accepted": "; ".join(run.judgement.reasons) if run.judgement else None,
        "chain": which.chain,
        "parent": run.parent,
        "data": f"{config.get('data')}, {data.get('examples')} examples, digest {data.get('digest')}",
        "scores": ", ".join(f"{name} {shown(name, value)}" for name, value in score.items() if name != "examples"),
        "algorithm": run.attributes["algorithm"],
        "code": config.get("model"),
        "versions": ", ".join(f"{name} {number}" for name, number in run.attributes["versions"].items()),
    }


def write_onnx(network: torch.nn.Module, spec: ModelSpec, kind: str, place: Path) -> None:
    """Write a network of one input to an ONNX file that takes any number of examples, by torch's exporter.

    `kind` is that of the inputs as a `Description` says it. Raises `UsageError` for inputs by name and without the
    packages, and `ModelError` for a network that torch cannot export.
    """
    for package in ("onnx", "onnxscript"):
        needed(package, package)
    if "," in kind:
        raise UsageError(f"{spec.name} takes several inputs by name, and --onnx writes networks of one")
    dtype = torch.int64 if kind == "integers" else getattr(torch, spec.dtype)
    for noisy in ("torch.onnx", "torch.export"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what is told there is in the error, too
    with (
        failing_as(lambda e: ModelError(f"{spec.name} cannot become ONNX: {one_line(e.__cause__ or e)}")),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        example, axes = (torch.zeros((2, *spec.inputs), dtype=dtype),), ({0: torch.export.Dim("examples")},)
        program = torch.onnx.export(network, example, dynamo=True, verbose=False, dynamic_shapes=axes)
        assert program is not None
        size = sum(tensor.nbytes for tensor in network.state_dict().values())
        program.save(place, external_data=size > LARGE)
