"""The `roundweave` command. Only the subcommand that runs is imported, so that the command starts quickly."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from roundweave.flows.command.errors import clear_errors, ended_by_interrupts, fail
from roundweave.flows.reporting.listening import begun, going_on
from roundweave.flows.serving.server import warm_up
from roundweave.flows.terminal.common import LIST
from roundweave.storage.errors import TRACEBACK, UsageError
from roundweave.tasks.executors.base import EXECUTORS
from roundweave.tasks.own_code.imports import kept

HELP = "Train one neural network on many partitions of the data, in rounds that can be opened and replayed."
COMMANDS = {
    "init": ("starting", "Write a commented train.toml and a mine.py to start from."),
    "list": ("starting", "List algorithms with their options, data, splits, models and other names."),
    "split": ("starting", "Show how many examples of each label each partition gets."),
    "train": ("training", "Train a network in rounds, or resume the run of the same name."),
    "resume": ("training", "Resume a run after its last committed round."),
    "show": ("looking", "Show a run: configuration, rounds, scores and events."),
    "runs": ("looking", "List the runs under a root."),
    "score": ("evidence", "Score the network of a stored round on other data, or on its held-out examples."),
    "diff": ("evidence", "Show the first difference between two runs: option, round, tensor."),
    "replay": ("evidence", "Compute stored rounds again, and check that the results have the same bits."),
    "recombine": ("evidence", "Aggregate stored updates again, without training, in the same or another way."),
    "verify": ("upkeep", "Read all files of a run, and report each damaged file."),
    "prune": ("upkeep", "Delete tensors of rounds; records and scores stay."),
    "cp": ("upkeep", "Copy a run to another root or address, and verify the copy."),
    "rm": ("upkeep", "Delete runs by name, pattern or age."),
    "merge": ("merging", "Merge networks that were trained separately: match hidden units, then average."),
    "gram": ("merging", "Write the Gram matrices of a network's layer inputs, for a merge without the examples."),
    "units": ("merging", "Show the interchangeable hidden units of a network."),
    "worker": ("joining", "Run a worker of a Dask cluster, which reconnects after a lost connection."),
    "certificates": ("joining", "Write certificates and keys for a TLS-encrypted Dask cluster."),
}
"""Each subcommand's module and its line in the list of subcommands."""

GROUPS = {"starting": "Start", "training": "Train", "looking": "Inspect", "evidence": "Inspect"}
GROUPS |= {"upkeep": "Store and export", "merging": "Merge", "joining": "Clusters"}
"""The groups of subcommands in the help, by the module."""

FLOWS = ("train", "resume", "merge")
"""Subcommands that run as Prefect flows."""

TRAINING = ("train", "resume", "replay", "plan")
"""Subcommands that start a local cluster unless an option says otherwise."""

OF_INTERRUPTS = 130
"""The exit code into which typer turns a `KeyboardInterrupt`."""

WHOLE = "--traceback"
"""The option that shows errors with their tracebacks."""

_COMPLETING = "_ROUNDWEAVE_COMPLETE"
"""The environment variable that a shell sets when it asks for completions."""


def main() -> None:
    """Run the command and exit: code 0 for success, 1 for a failure, 2 for bad usage."""
    arguments = _completed() or sys.argv[1:] or ["--help"]
    if arguments[0] == "help":
        arguments = [*arguments[1:2], "--help"]
    as_json = "--json" in arguments
    if WHOLE in arguments:  # it may stand anywhere, and workers inherit the environment
        arguments.remove(WHOLE)
        os.environ[TRACEBACK] = "1"
    with (
        clear_errors(as_json),
        ended_by_interrupts(lambda: fail(_interrupted(_asked(arguments)), as_json=as_json)),
    ):
        with kept(own=True):
            _begin_ahead(arguments)
            app = application(arguments)
        code = app(arguments, standalone_mode=False)
        if code == OF_INTERRUPTS:
            raise KeyboardInterrupt
        sys.stdout.flush()
    sys.exit(code)


class Once(typer.core.TyperCommand):
    """A subcommand that refuses a list that is given twice, as the first one would be lost."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args([*args])
        if twice := [each.opts[0] for each in given if given.count(each) > 1 and each.metavar == LIST]:
            raise UsageError(f"{twice[0]} is given twice; give it once, a list with commas")
        return super().parse_args(ctx, args)


def _completed() -> list[str]:
    """The words that a shell asks to complete, without the command's own name."""
    words = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", ""))
    return words.split()[1:] if _COMPLETING in os.environ else []


def _asked(arguments: list[str]) -> str | None:
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def _begin_ahead(arguments: list[str]) -> None:
    """Start Prefect's server and the process that forks workers early if the subcommand needs them.

    Both import modules for seconds, while this process imports its own.
    """
    asked, words = _asked(arguments), {word for argument in arguments for word in argument.split("=")}
    if words & {"--help", "-h"} or _COMPLETING in os.environ:
        return
    if asked in FLOWS:
        warm_up()
    here = {name for name, entry in EXECUTORS.items() if not entry.distributed}
    if asked in TRAINING and not words & {"--scheduler", *here}:
        from roundweave.tasks.executors.clusters import fork_server

        named = re.findall(r"--data[ =](\S+)", " ".join(arguments)) if asked == "train" else []
        os.environ[fork_server.EXAMPLES] = named[-1] if named else ""
        fork_server.begin()


def _interrupted(asked: str | None) -> str:
    """The line that says what an interrupted subcommand has left."""
    left = {"prune": "; run prune again to finish", "cp": "; no copy was made"}
    if asked in ("train", "resume"):
        return f"interrupted; {going_on(begun[-1] if begun else None)}"
    return f"interrupted{left.get(asked or '', '')}"


def application(arguments: list[str]) -> typer.Typer:
    """The typer application with all subcommands; only the one in the arguments is imported."""
    names = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(help=HELP, pretty_exceptions_enable=False, context_settings=names)
    app.callback()(_common)
    asked = _asked(arguments)
    own = {name: (module, GROUPS[module], line) for name, (module, line) in COMMANDS.items()}
    for name, (module, group, summary) in (own | of_plugins()).items():
        if name == asked:
            app.command(name, cls=Once)(_loaded(name, module, arguments))
        else:
            app.command(name, help=summary, rich_help_panel=group)(_unloaded)
    return app


def of_plugins() -> dict[str, tuple[str, str, str]]:
    """The subcommands of plugins: module, as seen from those of the others, group and line."""
    home = "roundweave.flows.plugins"
    table = import_module(home).PLUGINS
    there = {plugin: commands for plugin, commands in table.items() if find_spec(f"{home}.{plugin}")}
    return {name: (f"..plugins.{p}.commands", *shown) for p, each in there.items() for name, shown in each.items()}


def _loaded(name: str, module: str, arguments: list[str]) -> Callable[..., Any]:
    loaded = import_module(f".{module}", "roundweave.flows.command.subcommands")
    command: Callable[..., Any] = getattr(loaded, f"{name}_command")
    if name not in ("train", "plan"):
        return command
    from roundweave.flows.terminal.options import with_algorithms  # slow to import

    return with_algorithms(command, arguments)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"roundweave {version('roundweave')}")
        raise typer.Exit


def _common(
    _: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    traceback: Annotated[bool, typer.Option(WHOLE, help="Show errors with their tracebacks.")] = False,
) -> None:
    """The options that stand before a subcommand."""


def _unloaded() -> None:
    """Stands in the list of subcommands for one that is not imported."""


if __name__ == "__main__":
    main()
