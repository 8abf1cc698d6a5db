"""Features that hang on the kernel, a folder each, in the order in which their hooks are called.

Nothing imports a folder but by this table. One that is deleted is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

PLUGINS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "sites": {},
    "validation": {},
    "score_partitions": {},
    "scheduled": {
        "serve": ("Train", "Train a configuration on a schedule, until Ctrl-C."),
        "deploy": ("Train", "Train a configuration on a schedule with a Prefect work pool."),
    },
    "race": {"plan": ("Train", "Race all training strategies for a few seconds, and choose one.")},
    "cohort": {},
    "parameter_server": {},
    "deadline": {},
    "log_file": {},
    "early_stopping": {},
    "drift": {},
    "gate": {"alias": ("Store and export", "Show an alias such as champion, give it to a run, or take it back.")},
    "exports": {
        "export": ("Store and export", "Export a round's weights to a file, or a run's scores to a tracker."),
        "report": ("Store and export", "Write a self-contained HTML page about a run."),
    },
    "retention": {},
    "stacked": {},
    "tensor_parallel": {},
    "device": {},
    "compressed": {},
    "topology": {},
}
"""The folders, in each of which one subclass of `Plugin` is defined, and their subcommands.

A subcommand is the function ``NAME_command`` of the module ``commands``, with its group and its line in the help.
"""
