"""What the rounds of a run compute: from a resolved configuration, where the examples and the processes are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from flows.config.resolving import Resolved, objective_for
from tasks.data.partitions import Description, combine
from tasks.executors.base import Executor
from tasks.networks.fit import check_fit
from tasks.numerics import Fingerprint, check_fingerprint
from tasks.rounds.job import Work


def work_of(resolved: Resolved, executor: Executor) -> tuple[Work, Description]:
    """What the rounds compute, and the examples that they compute it on."""
    if resolved.objective is None:
        resolved = _described(resolved, executor)
    config, objective, description = resolved.config, resolved.objective, resolved.description
    assert objective is not None
    assert description is not None
    fingerprint = None if config.mixed_hardware else _common_fingerprint(executor)
    decided = (config.seed, config.threads, config.quorum, fingerprint, config.code)
    before = config.recombined.before if config.recombined else 0
    return Work(objective, resolved.algorithm, resolved.partitions, *decided, before), description


def _described(resolved: Resolved, executor: Executor) -> Resolved:
    """What could be resolved only where the partitions are."""
    partitions = resolved.partitions
    descriptions = executor.gather(partitions.describe, range(partitions.split.partitions))
    description = combine(descriptions)
    digests = tuple(part.digest for part in descriptions)
    partitions = replace(partitions, digests=digests, shared=bool(description.shared))
    wanted = objective_for(resolved.config, description)
    (objective,) = executor.gather(partial(check_fit, wanted, partitions, description), range(1))
    algorithm = resolved.algorithm.bound(objective, partitions)
    return Resolved(resolved.config, algorithm, partitions, description, objective)


def _common_fingerprint(executor: Executor) -> Fingerprint:
    """What all processes may do to the bits; raises `NumericsMismatch` where they differ."""
    fingerprints = executor.fingerprints()
    first = next(iter(fingerprints.values()))
    for place, other in fingerprints.items():
        check_fingerprint(first, other, place)
    return first
