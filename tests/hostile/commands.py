"""The commands that read stores, and what each must be: one line where it fails, and nothing for a terminal."""

from __future__ import annotations

import shutil
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hostile.running import Commands

LOOKING: dict[str, tuple[str, ...]] = {
    "runs": ("runs", "{root}"),
    "runs --json": ("runs", "{root}", "--json"),
    "show": ("show", "{run}"),
    "show --json": ("show", "{run}", "--json"),
    "verify": ("verify", "{run}"),
    "verify --json": ("verify", "{run}", "--json"),
    "diff": ("diff", "{run}", "{sound}"),
    "diff back": ("diff", "{sound}", "{run}"),
    "diff --json": ("diff", "{run}", "{sound}", "--json"),
    "export": ("export", "{run}@last", "--to", "weights.safetensors"),
    "export best": ("export", "{run}@best", "--to", "weights.pt"),
    "export tensorboard": ("export", "{run}", "--to", "tensorboard", "--out", "board"),
    "report": ("report", "{run}", "--out", "page.html", "--replay", "1"),
    "prune --dry-run": ("prune", "{run}", "--keep", "last:1", "--dry-run"),
    "replay": ("replay", "{run}", "--executor", "inline"),
    "replay all": ("replay", "{run}", "--executor", "inline", "--all", "--json"),
    "recombine": ("recombine", "{run}", "--round", "1", "--executor", "inline"),
    "merge": ("merge", "{run}@last", "{sound}@last", "--executor", "inline"),
    "units": ("units", "{run}@last"),
    "start-from": (
        *("train", "--start-from", "{run}@last", "--model", "logistic", "--executor", "inline", "--root", "made"),
        *("--rounds", "1", "--partitions", "2"),
    ),
    "python recorded": ("python:recorded", "{run}"),
    "python cards": ("python:cards", "{run}"),
    "python numbers": ("python:numbers", "{run}"),
    "python tensors": ("python:tensors", "{run}"),
}
"""Those that leave a store as it is."""

CHANGING: dict[str, tuple[str, ...]] = {
    "cp": ("cp", "{run}", "copies"),
    "fork": ("train", "--from", "{run}@last", "--executor", "inline", "--rounds", "1", "--root", "made"),
    "resume": ("resume", "{run}", "--executor", "inline", "--rounds", "3", "--root", "{root}"),
    "prune": ("prune", "{run}", "--keep", "last:1"),
    "rm": ("rm", "{run}", "--yes"),
}
"""Those that write; each has a store as it was made."""

COMMANDS = LOOKING | CHANGING

LONGEST = 30_000_000
"""Characters of an answer, which JSON may give as long as they are in the store."""

CODES = (0, 1, 2, 3, 4, 5)
"""Done; failed; bad usage; of a replay, what differs and what is not as it was recorded; those of verify."""


def fill(arguments: tuple[str, ...], run: Path, sound: Path) -> list[str]:
    """The arguments of a command for a store."""
    names = {"run": str(run), "root": str(run.parent), "sound": str(sound)}
    return [argument.format(**names) for argument in arguments]


def tried(commands: Commands, chosen: list[str], store: Path, sound: Path, folder: Path) -> Iterator[dict]:
    """What became of each command over a store; those that write have a copy of it."""
    for name in chosen:
        work = folder / "work"
        work.mkdir(parents=True)
        run = work / "runs" / store.name if name in CHANGING else store
        if name in CHANGING:  # with all that is no file, and what has no content takes no disk
            run.parent.mkdir()
            subprocess.run(["cp", "-a", "--sparse=always", store, run], check=True)
        answer = commands.run(work, *fill(COMMANDS[name], run, sound))
        page = work / "page.html"
        answer["page"] = page.read_text() if page.exists() else ""
        yield {"command": name, **answer, "wrong": wrong(answer)}
        shutil.rmtree(work)


def controls(text: str) -> str:
    """What of a text a terminal or a reader would obey: all that is no character but the end of a line."""
    return "".join({c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") and c != "\n"})


def wrong(answer: dict[str, Any]) -> str:
    """What is wrong with an answer; nothing where it is as it must be."""
    texts = [answer["out"], answer["err"], answer["page"]]
    lines = [line for line in answer["err"].splitlines() if line.startswith("error: ")]
    problems = {
        f"traceback: {(answer['traceback'].strip().splitlines() or [''])[-1][:200]}": answer["traceback"],
        "a traceback on standard error": "Traceback" in answer["err"],
        f"exit code {answer['code']}": answer["code"] not in CODES,
        f"controls {controls(''.join(texts))!r}": controls("".join(texts)),
        "a forged line": any("\n[bold red]forged" in text or "\nforged" in text for text in texts),
        f"{len(lines)} lines of error": answer["code"] in (1, 2) and len(lines) > 1,
        f"{len(''.join(texts)):,} characters": len("".join(texts)) > LONGEST,
    }
    return "; ".join(what for what, there in problems.items() if there)
