"""Finds where two runs first differ, by their records and by the tensors of the first differing round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from flows.config.recorded import differences, other_examples
from flows.config.train import Experiment
from storage.errors import RoundMissing, StoreDamaged, StoreError
from storage.places.addresses import Where
from storage.runs.round import StoredRound
from storage.runs.run import StoredRun, open_stored
from storage.values.digests import differing, differing_tensor, match_tensors
from storage.values.tensors import dtype_name
from tasks.evidence.results import difference_as_json, largest_difference


@dataclass(frozen=True)
class RunDifference:
    """Where two runs first differ: `config` names fields of their experiments, `round` is the first such round.

    `what` names the first part of the round that differs, `tensor` its first differing tensor, and `largest` the
    largest absolute difference of two numbers, None if unknown. `detail` says more. `compared` rounds were equal.
    """

    runs: tuple[str, str]
    config: tuple[str, ...] = ()
    compared: int = 0
    round: int | None = None
    what: str = ""
    tensor: str | None = None
    largest: float | None = None
    detail: str = ""

    @property
    def equal(self) -> bool:
        """Whether experiments, updates and states are the same, to the bit."""
        return not self.config and self.round is None

    def summary(self) -> dict[str, Any]:
        """All fields as a JSON object."""
        return asdict(self) | {"largest": difference_as_json(self.largest), "equal": self.equal}

    def __str__(self) -> str:
        if self.round is None:
            return "; ".join(self.config) or "equal"
        tensor = f": {self.tensor}" if self.tensor else ""
        largest = "" if self.largest is None else f", by {self.largest:.6g} at most"
        return f"round {self.round}: {self.what}{tensor}{largest}{self.detail and f' ({self.detail})'}"


@dataclass(frozen=True)
class Within:
    """The first difference inside a round; its fields are those of `RunDifference`."""

    what: str
    tensor: str | None = None
    largest: float | None = None
    detail: str = ""


def diff(first: StoredRun | Where, second: StoredRun | Where, root: Where | None = None) -> RunDifference:
    """Find where two runs, given by names or addresses, first differ; times, workers and scores are ignored.

    The records of all rounds are compared, and the tensors of the first round that differs. Raises `NotARun`.
    """
    one, other = (run if isinstance(run, StoredRun) else open_stored(run, root) for run in (first, second))
    names, config = (one.name, other.name), tuple(_fields(one, other))
    lost: list[tuple[int, Within]] = []
    for number in range(max(one.done, other.done) + 1):
        within = _absent(one, other, number)
        if within is None:
            within = _first_in(one.round(number), other.round(number))
        elif number <= min(one.done, other.done):
            lost.append((number, within))  # later rounds may show a real difference
            continue
        if within is not None:
            return RunDifference(names, config, number - len(lost), number, **vars(within))
    if lost:
        return RunDifference(names, config, one.done + 1 - len(lost), lost[0][0], **vars(lost[0][1]))
    return RunDifference(names, config, one.done + 1)


def _fields(one: StoredRun, other: StoredRun) -> Iterator[str]:
    """The fields in which the recorded experiments differ, as ``field old -> new``."""
    if "merge" in (one.algorithm, other.algorithm):
        for name in differing(one.config, other.config):
            if name not in ("name", "root"):
                yield f"{name} {one.config.get(name)} -> {other.config.get(name)}"
        return
    wanted = {name: value for name, value in other.config.items() if name in Experiment.model_fields}
    yield from differences(one.config, Experiment(**wanted))
    if said := other_examples(one.attributes, other.attributes["data"]["digest"]):
        yield f"data: {said}"


def _absent(one: StoredRun, other: StoredRun, number: int) -> Within | None:
    """The reason why a round cannot be compared; None if both runs have its record."""
    for run in (one, other):
        if number > run.done:
            return Within(f"{run.name} ends with round {run.done}")
        try:
            run.round(number)
        except (RoundMissing, StoreDamaged) as error:
            return Within(f"its record is lost in {run.name}", detail=str(error))
    return None


def _first_in(first: StoredRound, second: StoredRound) -> Within | None:
    """The first difference between two rounds: of an update, the state, the split or the partitions' carry."""
    one, other = first.commit, second.commit
    if one.identity() == other.identity():
        return None
    for partition in sorted({*one.updates, *other.updates}):
        if within := _in_update(first, second, partition):
            return within
    if path := next(differing(one.tensors, other.tensors), None):

        def read(round: StoredRound) -> dict[str, torch.Tensor]:
            return {path: round.tensor(path)} if path in round.commit.tensors else {}

        return _in_tensors("the state", first, second, read)
    if one.split != other.split:
        return Within("which example went to which partition")
    return Within("what its partitions carry", detail=f"from rounds {one.carry_from} or {other.carry_from}")


def _in_update(first: StoredRound, second: StoredRound, partition: int) -> Within | None:
    """The difference of one partition: of its update, its weight or refusal, or how its units were matched."""
    one, other = first.commit.updates.get(partition), second.commit.updates.get(partition)
    what = f"the update of partition {partition}"
    if one is None or other is None:
        return Within(what, detail="it took part in one of them")
    if one.digest != other.digest:
        return _in_tensors(what, first, second, lambda round: round.update_tensors(partition))
    if (one.weight, one.result) != (other.weight, other.result):
        said = [record.refused or f"accepted with weight {record.weight}" for record in (one, other)]
        return Within(what, detail=" or ".join(said))
    if one.match != other.match:
        units = f"how the units of partition {partition} were matched"
        return _in_tensors(units, first, second, lambda round: match_tensors(round.match(partition)))
    return None


def _in_tensors(
    what: str, first: StoredRound, second: StoredRound, read: Callable[[StoredRound], Mapping[str, torch.Tensor]]
) -> Within:
    """The first differing tensor of those that `read` gives for both rounds.

    If tensors can no longer be read, the result only says so.
    """
    try:
        one, other = read(first), read(second)
    except StoreError as error:
        return Within(what, detail=f"its numbers cannot be read: {error}")
    name = differing_tensor(one, other)
    if name is None:
        return Within(what, detail="the records differ, the tensors that can be read do not")
    if name not in one or name not in other or one[name].shape != other[name].shape:
        return Within(what, name, detail=" or ".join(_described(tensors.get(name)) for tensors in (one, other)))
    return Within(what, name, largest_difference(one[name], other[name]))


def _described(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
