"""The machines of a run: what each process, and each site, has of numerics that decide bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.numerics.fingerprints import (
    Fingerprint,
    check_fingerprint,
    check_source,
    source_and_fingerprint,
    source_digest,
)
from roundweave.tasks.rounds.job import STORE


@dataclass(frozen=True)
class Machine:
    """The Roundweave source and the numerics of a process `where` partitions are mapped, or rounds are stored.

    `at` is its site, or `STORE`; empty if partitions have no sites.
    """

    where: str
    at: str
    source: str
    fingerprint: Fingerprint


def machines(executor: Executor, partitions: Partitions, device: str) -> list[Machine]:
    """The machines of an executor: all that map, or one of each partition's site, and one that stores."""
    if partitions.sites:
        called, site = partitions.called, partitions.site
        of_sites = executor.gather(partial(_asked, device), range(len(partitions.sites)))
        present = [Machine(f"a worker of {called(p)}", site(p), *answer) for p, answer in enumerate(of_sites)]
    else:
        everywhere = executor.each(partial(source_and_fingerprint, device))
        present = [Machine(where, "", *answer) for where, answer in everywhere.items()]
    (stores,) = executor.gather(partial(_asked, device), range(1), stored=True)
    return [*present, Machine("the process that stores", STORE, *stores)]


def _asked(device: str, _: int) -> tuple[str, Fingerprint]:
    return source_and_fingerprint(device)


def common_fingerprints(present: list[Machine], mixed: bool) -> tuple[Fingerprint | None, dict[str, Fingerprint]]:
    """The fingerprint that all machines share, and those of each site and of `STORE` where these have their own.

    None for `mixed` hardware. Raises `NumericsMismatch` if machines of one site differ, or, without sites, those
    that map, or if one has another Roundweave than this process.
    """
    for machine in present:
        check_source(source_digest(), machine.source, machine.where)
    if mixed:
        return None, {}
    own: dict[str, Fingerprint] = {}
    for machine in present:
        check_fingerprint(own.setdefault(machine.at, machine.fingerprint), machine.fingerprint, machine.where)
    if "" in own and own[STORE] == own[""]:
        return own[""], {}
    return own.pop("", None), own
