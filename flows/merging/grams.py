"""Gram matrices of one network's own examples, written to a file for a merge where these examples are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundweave.flows.config.merging.merge import GramConfig
from roundweave.flows.merging.recorded import check_data, of_folder, of_type, own_data, recorded_in, with_recorded
from roundweave.flows.merging.subjects import kept_code, own_samples, subject
from roundweave.flows.stored import open_run
from roundweave.storage.checkpoints.folders import CONFIG
from roundweave.storage.checkpoints.writing import check_place
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.opening import check_checkpoint, lasting, open_checkpoint, outline
from roundweave.tasks.data.examples import first_tensor
from roundweave.tasks.matching.tapping import batch_size
from roundweave.tasks.merging.gram_files import network_digest, write_grams
from roundweave.tasks.merging.solving import grams_of
from roundweave.tasks.networks.pretrained import names_in_network, renamed


def write_gram_file(config: GramConfig) -> dict[str, Any]:
    """Write the file that `--grams` of a merge takes, and say what it holds.

    Raises `RoundweaveError` if the network or the examples cannot be read, or do not fit.
    """
    check_place(config.out, config.force)
    root = full_address(config.root)
    opened = open_checkpoint(config.network, root, open_run)
    runs = recorded_in((config.network,), root)
    known = with_recorded(config, runs, root, config.trust)
    if known.data is None:
        raise UsageError("Gram matrices are of the inputs of examples; give --data")
    known = of_folder(known, config.network, {}) if (Path(config.network) / CONFIG).exists() else known
    known, _ = of_type(kept_code(known), [opened])
    found = subject(known)
    check_data((config.network,), runs, found.description)
    model = found.objective.model
    network = model.outlined()
    check_checkpoint(config.network, renamed(opened, names_in_network(network, opened)), outline(network))
    (fields,) = own_data(config, known, runs)
    own = own_samples(known, fields, runs[0], config.examples)
    grams = grams_of(model, (own,), (lasting(config.network, root),), 0, open_run)
    inputs = own.every_input
    size = batch_size(inputs)
    write_grams(config.out, grams, network_digest(opened))
    return {
        "out": config.out,
        "bytes": Path(config.out).stat().st_size,
        "layers": {name: tuple(gram.shape) for name, gram in grams.items()},
        "examples": len(first_tensor(inputs)) // size * size,
    }
