"""The machines of a run: what each process, and each place, has of numerics that decide bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from roundweave.tasks.executors.base import Executor
from roundweave.tasks.numerics.fingerprints import Fingerprint, check_fingerprint, fingerprint, sources
from roundweave.tasks.own_code.code import Code
from roundweave.tasks.rounds.job import STORE, Work


@dataclass(frozen=True)
class Machine:
    """The sources and the numerics of a process `where` partitions are mapped, or rounds are stored.

    `at` is its place, or `STORE`; empty if partitions have no places.
    """

    where: str
    at: str
    sources: Mapping[str, str]
    fingerprint: Fingerprint


def machines(executor: Executor, work: Work, codes: tuple[Code, ...]) -> list[Machine]:
    """Return the machines of an executor: all that map, or one of each partition's place, and one that stores.

    They import what the user's `codes` do.
    """
    partitions, asked = work.partitions, partial(_asked, work.mapper.device, codes)
    if partitions.placement.stays:
        called, label = partitions.called, partitions.placement.label
        of_places = executor.gather(asked, range(partitions.split.partitions))
        present = [Machine(f"a worker of {called(p)}", label(p), *answer) for p, answer in enumerate(of_places)]
    else:
        present = [Machine(where, "", *answer) for where, answer in executor.each(asked).items()]
    (stores,) = executor.gather(asked, range(1), stored=True)
    return [*present, Machine("the process that stores", STORE, *stores)]


def _asked(device: str, codes: tuple[Code, ...], _: int = 0) -> tuple[Mapping[str, str], Fingerprint]:
    return sources(codes), fingerprint(device)


def common_fingerprints(present: list[Machine], mixed: bool) -> tuple[Fingerprint | None, dict[str, Fingerprint]]:
    """The fingerprint that all machines share, and those of each place and of `STORE` where these have their own.

    None for `mixed` hardware. Raises `NumericsMismatch` if machines of one place differ, or, without places, those
    that map.
    """
    if mixed:
        return None, {}
    own: dict[str, Fingerprint] = {}
    for machine in present:
        check_fingerprint(own.setdefault(machine.at, machine.fingerprint), machine.fingerprint, machine.where)
    if "" in own and own[STORE] == own[""]:
        return own[""], {}
    return own.pop("", None), own
