"""What people mean by words of other tools, which are no subcommands, options or fields here."""

from __future__ import annotations

import re

MEANT = {
    "compare": "diff",
    "copy": "cp",
    "deploy-model": "export",
    "describe": "show",
    "evaluate": "score",
    "fit": "train",
    "info": "show",
    "log": "show",
    "logs": "show",
    "ls": "runs",
    "predict": "export (a network that predicts alone)",
    "remove": "rm",
    "run": "train",
    "status": "show",
    "tail": "show",
    "test": "score",
    "--aggregation": "--reduce",
    "--batch": "--batch-size",
    "--callbacks": "--plugins",
    "--clients": "--partitions",
    "--criterion": "--loss",
    "--config": "a TOML file, without an option",
    "--dataset": "--data",
    "--early-stopping": "--patience",
    "--epochs": "--local-epochs (of each of the --rounds)",
    "--fraction-fit": "--cohort (a share such as 0.5)",
    "--gpu": "--device cuda",
    "--hidden": "--model-options '{\"hidden\": 64}'",
    "--learning-rate": "--lr",
    "--max-iter": "--rounds",
    "--metrics": "--scores",
    "--n-jobs": "--workers",
    "--network": "--model",
    "--num-clients": "--partitions",
    "--num-rounds": "--rounds",
    "--output": "--root",
    "--random-state": "--seed",
    "--resume": "roundweave resume RUN",
    "--steps": "--local-steps",
    "--strategy": "--algorithm",
    "--test-size": "--held-out",
    "--validation-split": "--held-out",
    "--weight-decay": "--optimizer-options '{\"weight_decay\": 0.01}'",
}
"""Subcommands and options by what other tools call them."""

UNKNOWN = re.compile(r"No such (?:command|option):? '?(-{0,2}[\w-]+)'?")


def field_meant(name: str) -> str | None:
    """Return the field that is meant by one of another tool, such as ``lr`` by ``learning_rate``."""
    meant = MEANT.get(f"--{name.replace('_', '-')}", "").partition(" ")[0]
    return meant[2:].replace("-", "_") if meant.startswith("--") else None


def guess(message: str) -> str:
    """A message about an unknown word with what is meant by the word, by its meaning rather than its letters."""
    unknown = UNKNOWN.match(message)
    meant = MEANT.get(unknown[1]) if unknown else None
    return f"{unknown[0]}; did you mean {meant}?" if unknown and meant else message
