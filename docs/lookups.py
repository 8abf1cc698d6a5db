"""The pages of the reference that list commands, exit codes, errors, events and plugins."""

from __future__ import annotations

import builtins
import inspect
from dataclasses import fields
from typing import Any

import typer
from tables import Row, about, first_sentence, flags, table, usage

import roundweave as rw
from roundweave.flows.command import app as command
from roundweave.flows.command import errors as exits
from roundweave.flows.command.subcommands import training, upkeep
from roundweave.flows.config.algorithms import EVERY_OPTION
from roundweave.flows.config.merging.merge import MergeConfig
from roundweave.flows.config.plugins import plugin_classes
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.evidence import replaying
from roundweave.flows.reporting.outcomes import EVENTS
from roundweave.storage import errors

PYTHONS = {each for each in vars(builtins).values() if inspect.isclass(each)} - {Exception, BaseException, object}
"""The classes that Python has, but those that every error is of."""

MOST_OPTIONS = 25
"""The page of the commands shows so many options of one; of a command with more, those that are its own."""

EXITS = (
    (0, "all", "success; a `train` that had nothing to do, too"),
    (exits.FAILED, "all", "a failure, or Ctrl-C; SIGTERM of a training, too; committed rounds are kept"),
    (exits.FAILED, "`diff`", "the runs differ"),
    (exits.FAILED, "`rm`", "a run could not be removed"),
    (replaying.DIFFERS, "`replay`", "a round differs; fingerprint, code, data and versions are as recorded"),
    (exits.BAD_USAGE, "all", "wrong usage: a word, an option or your code"),
    (training.REJECTED, "`train`, `resume`", "the run was rejected by its gate, or because its data drifted"),
    (replaying.KEY_DIFFERS, "`replay`", "a round differs, and so does what the command names, such as versions"),
    (upkeep.DAMAGED, "`verify`", "the run is damaged"),
    (upkeep.NO_RUN, "`verify`", "there is no such run"),
    (upkeep.UNREADABLE, "`verify`", "a disk or a bucket could not be read"),
)
"""The exit codes, the commands that end with them, and their meaning."""

ABOUT_A_PLUGIN = ("takes_part", "label", "place", "part", "is_ours", "overrides", "is_like")
"""Methods of a plugin that a training does not call as hooks."""

SLOTS = {
    "fill": {
        "sampler": "which partitions take part in a round; empty: all",
        "patience": "how long a round waits for its partitions; empty: for ever",
        "placement": "where the examples of each partition stay",
        "mapper": "how maps are computed",
        "mixing": "how the networks of the partitions are averaged before a round; empty: they are not",
        "schedule": "which partition begins when; empty: the partitions of a round begin together",
        "keep": "which rounds stay stored",
    },
    "add": {
        "scorers": "score each round",
        "checks": "raise an error for examples that may not be trained on",
        "stops": "say of a committed round why the run ends with that round",
        "needs_scores": "options that need held-out examples",
    },
    "wrap": {"map": "a map around the map", "reduce": "around the reduce", "apply": "around the apply"},
}
"""The slots of a plan that a plugin fills, adds to, or wraps."""

GIVEN = {"config", "run", "algorithm", "partitions", "plugins", "filled"}
"""The fields of a plan that are no slots."""


def commands() -> str:
    """Each subcommand with its arguments and its own options."""
    lines = [
        "# Commands",
        "",
        "`roundweave COMMAND --help` prints the same in a terminal. "
        "`roundweave --install-completion` lets your shell complete commands, options and names of runs. "
        "`[…]` marks an argument that you may leave out, and `...` an argument that may have several values. "
        "[Exit codes](errors.md) have a page of their own.",
        "",
    ]
    every = sorted({**command.COMMANDS, **command.of_plugins()}.items())
    lines += table(
        ("command", "what for"), [(f"[{name}](#roundweave-{name})", text) for name, (*_, text) in every]
    )
    lines.append("")
    for name, (*_, summary) in every:
        lines += _command(name, summary)
    return "\n".join(lines)


def _command(name: str, summary: str) -> list[str]:
    group: Any = typer.main.get_command(command.application([name]))
    found = group.commands[name]
    params = [each for each in found.params if not getattr(each, "hidden", False) and each.name != "help"]
    of_runs = {*TrainConfig.model_fields, *EVERY_OPTION, *MergeConfig.model_fields}
    of_runs |= {field for plugin in plugin_classes() for field in plugin.model_fields}
    own = [each for each in params if each.name not in of_runs or each.param_type_name == "argument"]
    shown = params if len(params) <= MOST_OPTIONS else own
    words = [usage(each) for each in params if each.param_type_name == "argument"]
    words += [flags(each).strip("`") for each in params if each.param_type_name == "option" and each.required]
    lines = [f"## roundweave {name}", "", inspect.cleandoc(found.help or summary), ""]
    lines += ["```text", f"{' '.join(['roundweave', name, *words])} [OPTIONS]", "```", ""]
    rows = [(flags(each), each.help or "") for each in shown]
    lines += [*table(("argument or option", "what for"), rows), ""]
    if shown is not params:
        lines += [f"`roundweave {name}` also takes [options of a configuration](options.md).", ""]
    return lines


def failures() -> str:
    """The exit codes and all classes of errors."""
    every = [
        each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, rw.RoundweaveError)
    ]
    usage = (errors.UsageError, errors.CodeError)
    rows = [
        (
            f"`{each.__name__}`",
            about(each).replace("``", "`"),
            ", ".join(f"`{base.__name__}`" for base in each.__mro__ if base in PYTHONS),
            exits.BAD_USAGE if issubclass(each, usage) else exits.FAILED,
        )
        for each in every
    ]
    return "\n".join(
        [
            "# Exit codes and errors",
            "",
            "## Exit codes",
            "",
            *table(("code", "command", "meaning"), EXITS),
            "",
            "A command prints an error as one line on standard error. With `--json`, the command also "
            "prints the error as a JSON object. With `--traceback`, the command prints the traceback, too. "
            "A killed command ends with the code of its signal, such as 137.",
            "",
            "## Errors",
            "",
            "Each error is a `RoundweaveError`, and its text is one line. Most errors are also an error of "
            "Python, so `except KeyError` catches a missing round. `rw.RoundweaveError` and `rw.UsageError` are "
            f"names of the facade. Import any other error from `{errors.__name__}`:",
            "",
            "```python",
            "import roundweave as rw",
            f"from {errors.__name__} import RoundMissing",
            "",
            "try:",
            '    rw.open_run("first").round(99)',
            "except RoundMissing as error:",
            "    print(error)",
            "```",
            "",
            "The last column has the exit code of a command that ends with the error.",
            "",
            *table(("error", "when", "also an error of Python", "exit code"), rows),
        ]
    )


def events() -> str:
    """The events that Prefect gets."""
    return "\n".join(
        [
            "# Events",
            "",
            "Prefect gets these events during flow runs. Your automations can wait for them. The resource of each "
            "event is `roundweave.run.NAME`. "
            "[Be notified of a night](../how-to/schedule.md#be-notified-of-a-night) has an automation "
            "that calls a webhook.",
            "",
            *table(("event", "when"), [(f"`{name}`", when) for name, when in EVENTS.items()]),
        ]
    )


def plugins() -> str:
    """The hooks of a plugin, the slots that it fills, and the plugins that come with Roundweave."""
    rows = [
        (
            f"`{plugin.__name__}`",
            first_sentence(plugin),
            "yes" if plugin.decides else "no",
            ", ".join(f"[`{name}`](options.md#{name})" for name in plugin.model_fields),
        )
        for plugin in plugin_classes()
    ]
    found = {
        name: (f"`{name}`", first_sentence(hook))
        for name, hook in vars(rw.Plugin).items()
        if not name.startswith("_") and (inspect.isfunction(hook) or isinstance(hook, classmethod))
    }
    hooks = [row for name, row in found.items() if name not in ABOUT_A_PLUGIN]
    decided = {name for way in ("fill", "add") for name in SLOTS[way]}
    if decided | GIVEN != {each.name for each in fields(rw.Plan)}:
        raise ValueError("SLOTS does not list the slots of a plan")
    slots: list[Row] = [
        (f"`{name}`", f"`plan.{way}`", what) for way, each in SLOTS.items() for name, what in each.items()
    ]
    return "\n".join(
        [
            "# Plugins: hooks and slots",
            "",
            "A plugin is a callback: a class whose methods are called during a training. "
            "[Add a callback](../how-to/add-callback.md) shows how to write one. "
            "[`Plugin`](generated/Plugin.md) describes each hook with its arguments.",
            "",
            "## Hooks",
            "",
            *table(("hook", "when it is called, and what for"), hooks),
            "",
            "## Slots of a plan",
            "",
            "The hook `plan` gets a [`Plan`](generated/Plan.md) and returns a changed one: "
            '`plan.fill("my option", sampler=…)`, `plan.add(stops=…)` or `plan.wrap(map=…)`. '
            "Roundweave refuses two options that fill one slot.",
            "",
            *table(("slot", "method", "what it decides"), slots),
            "",
            "## Methods that are no hooks",
            "",
            *table(("method", "what for"), [found[name] for name in ABOUT_A_PLUGIN]),
            "",
            "## Plugins of Roundweave",
            "",
            "A plugin that decides bits is part of the experiment: a resumed run must have the same options of "
            "the plugin.",
            "",
            *table(("plugin", "what for", "decides bits", "options"), rows),
        ]
    )
