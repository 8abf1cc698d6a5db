"""Arguments that several commands take, in a file that nobody waits for."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors and JSON")]
Root = Annotated[str | None, typer.Option("--root", help="folder of all runs; default: $ROUNDWEAVE_ROOT or runs")]
RunName = Annotated[str, typer.Argument(help="the run's name, or its address")]
Trust = Annotated[bool, typer.Option(help="run the code kept in a store outside the root")]
