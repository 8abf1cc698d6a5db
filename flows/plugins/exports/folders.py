"""A round as a folder for others: its tensors, a card that says what they are, and the code that loads them."""

from __future__ import annotations

import base64
import inspect
import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from roundweave.flows.plugins.exports import goes_to_folder
from roundweave.flows.plugins.exports.pyfunc import write_pyfunc
from roundweave.flows.plugins.exports.report import ENVIRONMENT
from roundweave.flows.plugins.exports.trackers import installed
from roundweave.flows.reporting.listening import shown
from roundweave.flows.stored import Run
from roundweave.storage.checkpoints.folders import new_folder
from roundweave.storage.checkpoints.writing import CARD, MARK, check_folder
from roundweave.storage.errors import CheckpointError, ModelError, NotARun, failing_as, one_line, reason
from roundweave.storage.runs.listing import flat_config
from roundweave.storage.runs.round import Round
from roundweave.tasks.matching.tracing.exporting import silent
from roundweave.tasks.networks import reference
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.numerics.pinning import derive_seed
from roundweave.tasks.own_code.code import Code
from roundweave.tasks.own_code.modules import PREFIX

TEMPLATE = ENVIRONMENT.get_template("card.md")

NEEDED = "from roundweave.storage.errors import ModelError"
"""The only line of the built-in networks that needs Roundweave."""

OURS = re.compile(rb"^\s*(from|import) roundweave\b", re.MULTILINE)
"""Matches an import of Roundweave in a user's file."""

LARGE = 1 << 30
"""From so many bytes on, the tensors of an ONNX file lie in another file beside it: a file has 2 GiB at most."""


def export_round(run: Run, which: Round, to: str, trust: bool = False, onnx: bool = False) -> None:
    """Write a round of a run to a checkpoint file, or to a folder as `write_folder` does."""
    if goes_to_folder(to):
        write_folder(run, which, to, trust, onnx)
    else:
        which.save(to)


def write_folder(
    run: Run, which: Round, to: str, trust: bool = False, onnx: bool = False, pyfunc: bool = False
) -> Path:
    """Write a round of a run to a folder, which is replaced where an export wrote it, and return its path.

    With `pyfunc` it is a model that mlflow.pyfunc loads, too, if it is known how the network is built.
    `trust` allows running code that a store outside the root holds. Raises `UsageError` where something else lies
    there, `ModelError` where the network cannot be built, and `CheckpointError` where it cannot be written.
    """
    folder = check_folder(to)
    told = {"mark": MARK, "run": run, "which": which, "onnx": onnx, "shown": shown}
    told |= {"config": flat_config(run.config), "data": run.attributes["data"]}
    with (
        failing_as(lambda error: CheckpointError(f"{to} cannot be written: {reason(error)}")),
        new_folder(folder) as new,
    ):
        which.save(new / "model.safetensors")
        told |= _with_network(new, run, which, trust, onnx)
        (new / CARD).write_text(TEMPLATE.render(told), encoding="utf-8")
        if pyfunc and "spec" in told:
            write_pyfunc(new, run, told)
    return folder


def _with_network(folder: Path, run: Run, which: Round, trust: bool, onnx: bool) -> dict[str, Any]:
    """Write the code and the own files of a network, if it can be built; what the card says of it."""
    try:
        spec = run.model(trust)
    except NotARun:  # it is a merge of tensors, whose architecture nobody knows
        if onnx:
            raise
        return {}
    network, texts = which.network(trust), _texts(spec.model)
    for path, content in texts.items():
        (folder / "code" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "code" / path).write_bytes(content)
    if onnx:
        write_onnx(network, spec, run.attributes["data"].get("kind") == "integers", folder / "model.onnx")
    told = {"spec": spec, "options": json.loads(spec.options), "seed": derive_seed(spec.seed, "model")}
    told["ours"] = any(map(OURS.search, texts.values()))
    if save_pretrained := getattr(network, "save_pretrained", None):
        save_pretrained(folder)
    kind = type(network)
    importable = kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__
    told["pretrained"] = save_pretrained and importable and hasattr(kind, "from_pretrained")
    return told | {"kind": kind, "module": re.sub(rf"^{PREFIX}\w+?\.", "", kind.__module__)}


def _texts(model: str | Code) -> dict[str, bytes]:
    """The files that have the code of a network, by their paths."""
    if isinstance(model, str):
        source = inspect.getsource(reference).replace(NEEDED, "ModelError = ValueError")
        return {"roundweave_networks.py": source.encode()}
    if model.pickled:
        return {"model.pickle": base64.b64decode(model.pickled)}
    return {path: text.encode() for path, text in model.texts.items()}


def write_onnx(network: torch.nn.Module, spec: ModelSpec, integers: bool, place: Path) -> None:
    """Write a network of one input to an ONNX file that takes any number of examples, by torch's exporter.

    Inputs are `integers`, or of the network's dtype. Raises `UsageError` without the packages, and `ModelError`
    for a network that torch cannot export.
    """
    for package in ("onnx", "onnxscript"):
        installed(package, package)
    example = torch.zeros((2, *spec.inputs), dtype=torch.int64 if integers else getattr(torch, spec.dtype))
    axes = ({0: torch.export.Dim("examples")},)
    large = sum(tensor.nbytes for tensor in network.state_dict().values()) > LARGE
    with (
        failing_as(lambda e: ModelError(f"{spec.name} cannot become ONNX: {one_line(e.__cause__ or e)}")),
        silent(),
        warnings.catch_warnings(action="ignore"),
    ):
        torch.onnx.export(
            network, (example,), place, dynamo=True, verbose=False, external_data=large, dynamic_shapes=axes
        )
