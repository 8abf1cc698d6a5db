"""A folder of a network as a model that mlflow.pyfunc loads, with its signature and the scaling of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np

from roundweave.flows.plugins.exports.report import ENVIRONMENT
from roundweave.flows.plugins.exports.trackers import installed
from roundweave.flows.reporting.listening import notice
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.data.datasets import PIXELS
from roundweave.tasks.data.sources.images import IDX_SETS
from roundweave.tasks.networks.objective import ModelSpec

PREPARED = ("held_out_transform", "collate")
"""The user's functions that prepare inputs, which are no part of the model."""


def write_pyfunc(folder: Path, run: StoredRun, told: Mapping[str, Any]) -> None:
    """Write the files that mlflow.pyfunc needs; `told` is what the folder's card says of the network."""
    if given := [name for name in PREPARED if run.config.get(name)]:
        notice(f"{given[0]} of {run.name} is no part of MLflow's model, which takes what {given[0]} gives")
    source = str(run.config["data"]).partition(":")[0]
    scaling = IDX_SETS.get(source, PIXELS) if told["data"].get("kind") == "pixels" and not given else None
    template = ENVIRONMENT.get_template("predict.py.jinja")
    # A name of its own, as a process that loads several models has each module once.
    loader = f"predict_{told['which'].chain[:12]}"
    text = template.render(told, scaling=scaling)
    (folder / f"code/{loader}.py").write_text(text, encoding="utf-8")
    with catch_warnings(action="ignore"):  # MLflow's, of type hints that it would like
        models, pyfunc = (installed(f"mlflow.{name}", "mlflow-skinny") for name in ("models", "pyfunc"))
        model = models.Model(signature=_signature(told["spec"], told["data"], bool(run.config.get("encode"))))
        pyfunc.add_to_model(model, loader, data=".", code="code")
        model.save(str(folder / "MLmodel"))


def _signature(spec: ModelSpec, data: Mapping[str, Any], encoded: bool) -> Any:
    """The columns of a table, of which some are texts that are `encoded`, or the shape of an array."""
    types, models = installed("mlflow.types", "mlflow-skinny"), installed("mlflow.models", "mlflow-skinny")
    kind = {"pixels": np.uint8, "integers": np.int64}.get(data.get("kind", ""), np.dtype(spec.dtype))
    names = data.get("input_names")
    if names:
        columns = {name.partition("=")[0] if encoded else name: "=" in name for name in names}
        kinds = {name: "string" if encoded and texts else "double" for name, texts in columns.items()}
        inputs = types.Schema([types.ColSpec(kind, name) for name, kind in kinds.items()])
    else:
        inputs = types.Schema([types.TensorSpec(np.dtype(kind), (-1, *spec.inputs))])
    return models.ModelSignature(inputs)
