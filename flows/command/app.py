"""The `roundweave` command. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from flows.command.options import given, with_options
from flows.config.merge import Architecture, MergeConfig, Merging
from flows.config.train import Execution, Experiment, Placement, TrainConfig, problems
from storage.errors import CodeError, RoundweaveError, UsageError

BEGAN = time.time()


INTERRUPTED = "interrupted; committed rounds are kept, `roundweave resume` goes on"


app = typer.Typer(
    help="Train one neural network on many partitions of the data, in rounds that can be opened and replayed.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


Json = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]


Root = Annotated[Path | None, typer.Option("--root", help="folder of all runs; default: $ROUNDWEAVE_ROOT or runs")]


def main() -> None:
    """Run the command: exit code 0 done, 1 failed, 2 bad usage."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.TyperException as error:
        _fail(error.format_message().replace("Value error, ", ""), 2, as_json=False)
    except typer.Abort:
        _fail("aborted", 1, as_json=False)
    sys.exit(code)


@app.command()
@with_options(Experiment, Execution)
def train(
    config: Annotated[Path | None, typer.Argument(help="a TOML file with any of the options below")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a network in rounds; the same name and experiment go on after the last committed round."""
    with _clear_errors(as_json, INTERRUPTED):
        values = _read_toml(config) if config else {}
        _train(TrainConfig(**values | given(options, Experiment, Execution)), as_json)


@app.command()
@with_options(Execution, without=("name", "root"))
def resume(
    run: Annotated[str, typer.Argument(help="the run's name, or its path")],
    trust: Annotated[bool, typer.Option(help="run the code kept in a store outside the root")] = False,
    root: Root = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Go on with a run after its last committed round, from what is kept in its store."""
    with _clear_errors(as_json, INTERRUPTED):
        from flows.command.running import resumed_config

        _train(resumed_config(run, root, trust, given(options, Execution)), as_json)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="the run's name, or its path")],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Print what a run is and how it went."""
    with _clear_errors(as_json):
        from flows.command import tables
        from storage.runs.run import open_run

        found = open_run(run, root)
        if as_json:
            _print_json(tables.run_summary(found))
        else:
            tables.print_run(found)


@app.command()
def runs(
    root: Annotated[
        Path | None, typer.Argument(help="folder of all runs; default: $ROUNDWEAVE_ROOT or runs")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the runs under a root."""
    with _clear_errors(as_json):
        from flows.command import tables
        from storage.runs.run import list_runs

        found = list_runs(root)
        if as_json:
            _print_json([tables.run_summary(run) for run in found])
        else:
            tables.print_runs(found)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="where to write them")] = Path(),
) -> None:
    """Write a commented train.toml and mine.py to start from."""
    with _clear_errors(False):
        from flows.command.templates import write_templates

        for path in write_templates(folder):
            typer.echo(f"wrote {path}")
        typer.echo("now: roundweave train train.toml")


@app.command()
@with_options(Architecture, Merging, Placement)
def merge(
    networks: Annotated[list[str], typer.Argument(help="torch or safetensors files, or stored rounds RUN@12")],
    out: Annotated[str | None, typer.Option(help="where to write the merged network: .safetensors, .pt")] = None,
    plot: Annotated[
        str | None, typer.Option(help="where to draw the path of two networks; default: by out")
    ] = None,
    trust: Annotated[bool, typer.Option(help="run the code kept in a store outside the root")] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Merge networks that were trained apart: match their hidden units, then average."""
    with _clear_errors(as_json):
        from flows.command.running import merge_quietly
        from flows.merging.result import print_merge

        values = given(options, Architecture, Merging, Placement)
        result = merge_quietly(MergeConfig(networks=tuple(networks), out=out, plot=plot, trust=trust, **values))
        if as_json:
            _print_json(result.summary())
        else:
            print_merge(result)


@app.command()
@with_options(Architecture)
def units(as_json: Json = False, **options: Any) -> None:
    """Show which hidden units of a network are interchangeable, and what is pinned and why."""
    with _clear_errors(as_json):
        from flows.merging.units import print_units, unit_report

        report = unit_report(Architecture(**given(options, Architecture)))
        if as_json:
            _print_json(report)
        else:
            print_units(report)


def _train(config: TrainConfig, as_json: bool) -> None:
    from flows.command import tables
    from flows.command.running import train_with_bar

    run, seconds = train_with_bar(config, BEGAN)
    if as_json:
        _print_json(tables.run_summary(run) | seconds)
    else:
        tables.print_result(run, seconds)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); `roundweave init` writes one") from error
    except ValueError as error:
        raise UsageError(f"{path} is no TOML file: {error}") from error


@contextmanager
def _clear_errors(as_json: bool, interrupted: str = "interrupted") -> Iterator[None]:
    """One line for a person, and the exit code, in place of a traceback."""
    try:
        yield
    except ValidationError as error:
        _fail("; ".join(problems(error)), 2, as_json)
    except (UsageError, CodeError) as error:
        _fail(str(error), 2, as_json)
    except RoundweaveError as error:
        _fail(str(error), 1, as_json)
    except KeyboardInterrupt:
        _fail(interrupted, 1, as_json)


def _fail(message: str, code: int, as_json: bool) -> NoReturn:
    typer.secho(f"error: {message}", fg="red", err=True)
    if as_json:
        _print_json({"status": "failed", "error": message})
    sys.exit(code)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value))


if __name__ == "__main__":
    main()
