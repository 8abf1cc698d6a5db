"""A log of trainings as lines of JSON in a file, to which several processes may append at once."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from roundweave.flows.reporting.listening import Listener, finite, listening, notice
from roundweave.storage.errors import UsageError, failing_as, one_line, reason
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.runs.names import run_name
from roundweave.storage.runs.run import StoredRun


class LogFile(Listener):
    """A listener that appends a line for each event to a file; what the file does not take is said once."""

    def __init__(self, path: Path, run: str | None = None) -> None:
        self.path = path
        self.run = run
        self.address: str | None = None
        self.status = "not begun"
        self._lost = False
        with failing_as(lambda error: UsageError(f"no log can be written to {path}: {reason(error)}")):
            self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._append("opened", {})

    def named(self, name: str) -> None:
        """Remember the name, by which also a run is logged that never begins."""
        self.run = name

    def began(self, address: str) -> None:
        """Log the name of the run, and the names of partitions, if they have some."""
        self.run, self.address = run_name(address), address
        names = StoredRun(address).partition_names
        self.write("began", **({} if isinstance(names, range) else {"partitions": list(names)}))

    def committed(self, commit: Commit, rounds: int) -> None:
        """Log a round: its scores, its time, and the partitions whose updates were refused, with the reason."""
        scores = commit.score.row() if commit.score else {}
        refused = {partition: update.refused for partition, update in commit.updates.items() if update.refused}
        fields = {"round": commit.round, "rounds": rounds, "scores": scores, "seconds": commit.seconds}
        self.write("committed", **fields, refused=refused)

    def skipped(self, text: str) -> None:
        """Log that there was nothing to do; the notice that comes with it says why."""
        self.status = "skipped"

    def notice(self, text: str) -> None:
        """Log one line of text."""
        self.write("notice", text=text)

    def write(self, event: str, **fields: Any) -> None:
        """Append a line; where that fails, say so the first time."""
        try:
            self._append(event, fields)
        except OSError as error:
            if not self._lost:
                self._lost = True
                notice(f"the log file {self.path} cannot be written ({reason(error)}); training continues")

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        line = json.dumps(finite({"time": now, "event": event, "run": self.run} | fields))
        # A line that was cut short before gets its end first. One call writes a line as a whole.
        text = ("\n" * self._lost + line + "\n").encode()
        if os.write(self.file, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)


@contextmanager
def logged(path: Path | None, run: str | None = None) -> Iterator[None]:
    """Append a line to this file for each event while the context is open, the last with the status at the end.

    `run` is the configured name, which may have a date to come. Raises `UsageError` if it cannot be written.
    """
    if path is None:
        yield
        return
    log = LogFile(path, run)
    try:
        with listening(log):
            yield
        log.write("ended", status=StoredRun(log.address).status if log.address else log.status)
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        log.write("ended", status=status, failure=one_line(error))
        raise
    finally:
        log.close()
