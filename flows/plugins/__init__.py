"""Features that hang on the kernel, a folder each, in the order in which their hooks are called.

Nothing imports a folder but by this table. One that is deleted is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

PLUGINS: Mapping[str, Mapping[str, str]] = {
    "sites": {},
    "validation": {},
    "score_partitions": {},
    "scheduled": {
        "serve": "Train a configuration on a schedule, until Ctrl-C.",
        "deploy": "Have a work pool of Prefect train a configuration on a schedule.",
    },
    "race": {"plan": "Have each way of training the run race for some seconds, and choose one."},
    "cohort": {},
    "parameter_server": {},
    "deadline": {},
    "log_file": {},
    "early_stopping": {},
    "drift": {},
    "gate": {"alias": "Show who has an alias such as champion, give it to a run, or take it back."},
    "exports": {
        "export": "Write a round's weights to a file, or a run's numbers to a tracker of experiments.",
        "report": "Write one page that tells of a run and needs nothing else.",
    },
    "retention": {},
    "stacked": {},
    "tensor_parallel": {},
    "device": {},
    "compressed": {},
    "topology": {},
}
"""The folders, in each of which one subclass of `Plugin` is defined, and their subcommands.

A subcommand is the function ``NAME_command`` of the module ``commands``, with its line in the list of subcommands.
"""
