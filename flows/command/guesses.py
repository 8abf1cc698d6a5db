"""What people mean by words of other tools, which are no subcommands or options here."""

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
    "remove": "rm",
    "run": "train",
    "status": "show",
    "tail": "show",
    "test": "score",
    "--aggregation": "--reduce",
    "--batch": "--batch-size",
    "--clients": "--partitions",
    "--config": "a TOML file, without an option",
    "--dataset": "--data",
    "--epochs": "--local-epochs",
    "--fraction-fit": "--cohort",
    "--gpu": "--device cuda",
    "--learning-rate": "--lr",
    "--metrics": "--scores",
    "--network": "--model",
    "--num-clients": "--partitions",
    "--num-rounds": "--rounds",
    "--output": "--root",
    "--resume": "roundweave resume RUN",
    "--steps": "--local-steps",
    "--strategy": "--algorithm",
}
"""Subcommands and options by what other tools call them."""

UNKNOWN = re.compile(r"No such (?:command|option):? '?(-{0,2}[\w-]+)'?")


def guess(message: str) -> str:
    """A message about an unknown word with what is meant by the word, by its meaning rather than its letters."""
    unknown = UNKNOWN.match(message)
    meant = MEANT.get(unknown[1]) if unknown else None
    return f"{unknown[0]}; did you mean {meant}?" if unknown and meant else message
