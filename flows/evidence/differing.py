"""Finds where two runs first differ, by their records and by the tensors of the first differing round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.recorded import differences, other_data
from roundweave.flows.evidence.recomputing import open_again
from roundweave.storage.errors import RoundMissing, StoreDamaged, StoreError
from roundweave.storage.places.base import Where
from roundweave.storage.runs.round import Round
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.values.digests import differing, match_tensors
from roundweave.storage.values.tensors import differences as tensor_differences
from roundweave.storage.values.tensors import dtype_name
from roundweave.tasks.rounds.evidence.results import difference_as_json


@dataclass(frozen=True)
class RunDifference:
    """The first difference of two runs.

    `config` names the fields of the experiments that differ, and `round` is the first round that differs. `what`
    names the part of the round that differs, `tensor` the first differing tensor of that part, and `largest` its
    largest absolute difference, None if unknown. `detail` says more. `compared` rounds were equal, including all
    updates if `digested`: records have no digests of updates that were not stored.
    """

    what: str = ""
    tensor: str | None = None
    largest: float | None = None
    detail: str = ""
    runs: tuple[str, str] = ("", "")
    config: tuple[str, ...] = ()
    compared: int = 0
    digested: bool = True
    round: int | None = None

    @property
    def equal(self) -> bool:
        """Whether experiments, states and recorded updates are equal to the bit."""
        return not self.config and self.round is None

    def summary(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        return asdict(self) | {"largest": difference_as_json(self.largest), "equal": self.equal}

    @property
    def lines(self) -> list[str]:
        """Return lines that name each differing field, and the first differing round and tensor."""
        if self.equal:
            said = f"experiment, updates and states of {self.compared} rounds"
            if not self.digested:
                said = f"experiment and states of {self.compared} rounds, and of updates what both recorded"
            return [f"{self.runs[0]} and {self.runs[1]} are equal: {said}"]
        fields = [f"config: {field}" for field in self.config]
        if self.round is None:
            return [*fields, f"all {self.compared} rounds are equal"]
        tensor = f": {self.tensor}" if self.tensor else ""
        largest = "" if self.largest is None else f", by {self.largest:.6g} at most"
        detail = self.detail and f" ({self.detail})"
        return [*fields, f"round {self.round}: {self.what}{tensor}{largest}{detail}"]

    def __str__(self) -> str:
        return "; ".join(self.lines)


def diff(first: StoredRun | Where, second: StoredRun | Where, root: Where | None = None) -> RunDifference:
    """Find the first round, and in the round the first tensor, in which two runs differ.

    Times, workers and scores are ignored. A round whose record is lost in one run counts as different.

    Args:
        first: A run, its name or its address.
        second: The other run.
        root: The folder or address of the runs. The default is ``$ROUNDWEAVE_ROOT``, or else ``runs``.

    Returns:
        The difference. Its property ``equal`` is True if nothing differs.

    Raises:
        NotARun: A run does not exist.

    Example:
        >>> rw.diff("first", "second").equal
    """
    one, other = (run if isinstance(run, StoredRun) else open_again(run, root) for run in (first, second))
    shorter = min(one, other, key=lambda run: run.done)
    within, compared, digested = RunDifference(), 0, True
    for number in range(shorter.done + 1):
        if (within := _in_round(one, other, number)).what:
            break
        compared, digested = number + 1, digested and within.digested
    if not within.what and one.done != other.done:
        within = RunDifference(f"{shorter.name} ends with round {shorter.done}")
    return replace(
        within,
        runs=(one.name, other.name),
        config=tuple(_fields(one, other)),
        compared=compared,
        digested=digested,
        round=compared if within.what else None,
    )


def _fields(one: StoredRun, other: StoredRun) -> Iterator[str]:
    """Return the fields in which the recorded experiments differ, as ``field old -> new``."""
    if "merge" in (one.algorithm, other.algorithm):
        for name in differing(one.config, other.config):
            if name not in ("name", "root"):
                yield f"{name} {one.config.get(name)} -> {other.config.get(name)}"
        return
    yield from differences(one.config, Experiment.of(other.config))
    if said := other_data(one.attributes, other.attributes["data"]):
        yield f"data: {said}"


def _in_round(one_run: StoredRun, other_run: StoredRun, number: int) -> RunDifference:
    """Return the first difference of a round: an update, the state, the split, the carry, the server."""
    try:
        first, second = one_run.round(number), other_run.round(number)
    except (RoundMissing, StoreDamaged) as error:
        return RunDifference("its record is lost", detail=str(error))
    one, other = first.commit, second.commit
    if one.agrees(other):
        return RunDifference(digested=all(u.digest for each in (one, other) for u in each.updates.values()))
    for partition in sorted({*one.updates, *other.updates}):
        if within := _in_update(first, second, partition):
            return within
    if path := next(differing(one.tensors, other.tensors), None):

        def read(round: Round) -> dict[str, torch.Tensor]:
            return {path: round.tensor(path)} if path in round.commit.tensors else {}

        return _in_tensors("the state", first, second, read)
    if dict(one.carry_from) != dict(other.carry_from) and one.split == other.split:
        carried = f"from rounds {one.carry_from} or {other.carry_from}"
        return RunDifference("what its partitions carry", detail=carried)
    server = "how its updates came to the parameter server, or the work in flight"
    return RunDifference(server if one.split == other.split else "which example went to which partition")


def _in_update(first: Round, second: Round, partition: int) -> RunDifference | None:
    """Return the difference of one partition: its update, weight, refusal or match of units."""
    one, other = first.commit.updates.get(partition), second.commit.updates.get(partition)
    alike = first.partition_names == second.partition_names
    called = f"partition {first.partition_names[partition] if alike else partition}"
    what = f"the update of {called}"
    if one is None or other is None:
        return RunDifference(what, detail="it took part in one of them")
    if one.digest and other.digest and one.digest != other.digest:
        return _in_tensors(what, first, second, lambda round: round.update_tensors(partition))
    if (one.weight, one.result) != (other.weight, other.result):
        said = [record.refused or f"accepted with weight {record.weight}" for record in (one, other)]
        return RunDifference(what, detail=" or ".join(said))
    if one.match != other.match:
        units = f"how the units of {called} were matched"
        return _in_tensors(units, first, second, lambda round: match_tensors(round.match(partition)))
    return None


def _in_tensors(
    what: str, first: Round, second: Round, read: Callable[[Round], Mapping[str, torch.Tensor]]
) -> RunDifference:
    """Return the first differing tensor of those that `read` gives for both rounds.

    If tensors can no longer be read, the result says only that.
    """
    try:
        one, other = read(first), read(second)
    except StoreError as error:
        return RunDifference(what, detail=f"its numbers cannot be read: {error}")
    for name, largest in tensor_differences(one, other):
        kinds = [_described(tensors.get(name)) for tensors in (one, other)]
        return RunDifference(what, name, largest, detail=" or ".join(kinds) if largest is None else "")
    return RunDifference(what, detail="the records differ, the tensors that can be read do not")


def _described(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
