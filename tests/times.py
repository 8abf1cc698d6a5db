"""Seconds of processor of each test with its processes; `make test-times` prints those of the last run.

What sets up a module, a package or the session is counted apart from the test that comes first.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
DEAR = 3.0
"""Seconds of processor above which a test of the first suite needs the mark `dear`, with its reason."""


@dataclass(frozen=True)
class Spent:
    """What a test took: seconds of processor, whether `make test` runs it, and why it may be dear."""

    seconds: float
    first: bool = True
    reason: str | None = None


@dataclass
class Family:
    """This process and all that came of it, also those whose parents have ended."""

    members: set[int] = field(default_factory=lambda: {os.getpid()})

    def seconds(self) -> float:
        """Of processor, so far; a process counts with its children once it has waited for them."""
        if self.members == {os.getpid()} and not _has_children():
            return sum(os.times()[:4])  # the same sum, without a look at every process of this machine
        processes = {pid: (parent, ticks) for pid, parent, ticks in _processes()}
        self.members &= processes.keys()
        while born := {p for p, (parent, _) in processes.items() if parent in self.members} - self.members:
            self.members |= born
        return sum(processes[pid][1] for pid in self.members) / TICKS


def _has_children() -> bool:
    """Whether a process that this one has begun still runs, or was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and ticks of each process of this machine: proc(5), fields 4 and 14 to 17 of `stat`."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - each test reads all of it, and paths take twice the time
        if name.isdigit():
            try:
                descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                text = os.read(descriptor, 1024)
            except ProcessLookupError:
                continue
            finally:
                os.close(descriptor)
            fields = text[text.rindex(b")") + 2 :].split(maxsplit=15)
            yield int(name), int(fields[1]), sum(map(int, fields[11:15]))


class Times:
    """A plugin of pytest that keeps the times of the tests, in one file for all processes of a run."""

    def __init__(self, config: pytest.Config) -> None:
        cache = getattr(config, "cache", None)  # none where its plugin is left out
        self.file = Path(str(cache.mkdir("times"))) / "last.json" if cache else None
        self.family = Family()
        self.last = 0.0
        self.shared = 0.0
        self.spent: dict[str, Any] = {}

    def lap(self) -> float:
        """Seconds since the last call."""
        before, self.last = self.last, self.family.seconds()
        return max(0.0, self.last - before)

    def pytest_collection_finish(self) -> None:
        """What a process takes until its first test: imports, and the collection of all tests."""
        self.spent["tests::set up the process"] = asdict(Spent(self.lap()))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.shared = 0.0
        try:
            return (yield)
        finally:
            dear, group = (item.get_closest_marker(name) for name in ("dear", "xdist_group"))
            reason = dear.args[0] if dear else None
            spent = Spent(max(0.0, self.lap() - self.shared), not item.get_closest_marker("thorough"), reason)
            name = item.nodeid.removesuffix(f"@{group.args[0]}") if group else item.nodeid
            self.spent[name] = asdict(spent)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        if fixturedef.scope in ("function", "class"):
            return (yield)
        before, shared = self.family.seconds(), self.shared
        try:
            return (yield)
        finally:
            took = max(0.0, self.family.seconds() - before)
            self.shared = shared + took  # one that this one asked for is within it
            name = f"{fixturedef.baseid or 'tests'}::set up {fixturedef.argname}"
            self.spent[name] = asdict(Spent(self.spent.get(name, {"seconds": 0.0})["seconds"] + took))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what one of several processes has measured."""
        for name, spent in getattr(node, "workeroutput", {}).get("times", {}).items():
            seconds = self.spent.get(name, {"seconds": 0.0})["seconds"] + spent["seconds"]
            self.spent[name] = spent | {"seconds": seconds}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["times"] = self.spent
        elif self.file and self.spent:
            self.file.write_text(json.dumps(self.spent, indent=0))


def report(spent: dict[str, Spent], dearest: int = 40) -> Iterator[str]:
    """The lines of `make test-times`: the dearest tests, the sum of each folder, and those that lack a reason."""
    by_cost = sorted(spent, key=lambda name: -spent[name].seconds)
    yield f"{'seconds':>8}  the {dearest} dearest of {len(spent)}"
    yield from (f"{spent[name].seconds:8.2f}  {name}" for name in by_cost[:dearest])
    folders: dict[str, list[float]] = defaultdict(list)
    for name, each in spent.items():
        folders["/".join(name.split("::")[0].split("/")[:3]).removesuffix(".py")].append(each.seconds)
    yield f"\n{'seconds':>8} {'tests':>6}  folder"
    for folder in sorted(folders, key=lambda name: -sum(folders[name])):
        yield f"{sum(folders[folder]):8.1f} {len(folders[folder]):6}  {folder}"
    yield f"{sum(each.seconds for each in spent.values()):8.1f} {len(spent):6}  in all"
    lacking = [n for n in by_cost if spent[n].first and spent[n].seconds > DEAR and not spent[n].reason]
    lacking = [name for name in lacking if "::set up " not in name]
    if lacking:
        yield f"\nover {DEAR:.0f} s in the first suite, without the mark `dear` and its reason:"
        yield from (f"{spent[name].seconds:8.2f}  {name}" for name in lacking)


def main() -> int:
    """Print the times of the last run."""
    file = Path(".pytest_cache/d/times/last.json")
    if not file.exists():
        print("no times yet; run make test first", file=sys.stderr)
        return 1
    spent = {name: Spent(**each) for name, each in json.loads(file.read_text()).items()}
    print("\n".join(report(spent)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
