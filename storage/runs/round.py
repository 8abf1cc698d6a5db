"""A read-only view of one committed round: the updates of its partitions and the state after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import (
    RoundMissing,
    ShapeMismatch,
    TensorMissing,
    printable,
)
from roundweave.storage.places.base import Where
from roundweave.storage.rounds.commits import Commit, Score
from roundweave.storage.rounds.splits import named_partitions
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.names import run_name
from roundweave.storage.values.digests import match_tensors, update_tensors
from roundweave.storage.values.state import Layout, Match, State, Update
from roundweave.storage.values.tensors import load_named, shown_array, views

if TYPE_CHECKING:
    import xarray as xr

SHOWN_PARTITIONS = 12
"""The most partitions that a printed round shows."""


LONGEST_CELL = 100
"""The most characters of a reason for a refusal that a printed round shows. `Round.refused` has whole texts."""


class Round:
    """A committed round of a stored run: its updates, the state after the round, and the network with that state.

    Tensors are read from the store, and verified, on each access.

    Example:
        >>> run.round(2).params["fc1.weight"].shape
    """

    def __init__(self, store: RoundStore, commit: Commit, network: Callable[[bool], torch.nn.Module]) -> None:
        self._store = store
        self._network = network
        self.commit = commit

    @property
    def number(self) -> int:
        """The number of the round. Round 0 is the initial state, before any update."""
        return self.commit.round

    @property
    def chain(self) -> str:
        """The chain: a BLAKE3 digest, 64 hexadecimal digits, of the attributes and all rounds up to this one.

        Note the chain, and give it to `Run.verify` later to prove that nothing of these rounds was changed. Raises
        `StoreDamaged` if the commit record was changed.
        """
        return self._store.log.chain(self.number)

    @property
    def layout(self) -> Layout:
        """The names, dtypes and shapes of the network's tensors."""
        return self._store.schema.layout

    @property
    def score(self) -> Score | None:
        """The loss and the other scores on the held-out examples; None if the round was not scored."""
        return self.commit.score

    def scored(self, score: Score | None) -> Round:
        """Return the same round with another score, such as a score on other examples."""
        return Round(self._store, replace(self.commit, score=score), self._network)

    @property
    def state(self) -> State:
        """The state after the round: one vector (element,) for each dtype.

        Raises `RoundPruned` if the state was pruned or never stored, and `StoreDamaged` if its bits differ from
        the committed bits.
        """
        return self._store.tensors.read_state(self.commit)

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The trainable parameters after the round, by name, in their own shapes. Raises as `state`."""
        return views(self.layout.params, self.state.params)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of the network by name, in their own shapes, as ``load_state_dict`` takes them.

        These are parameters, buffers and frozen parameters. A tied tensor occurs under each of its names. Raises
        as `state`.
        """
        named = self.named.items()
        tensors = {path.partition("/")[2]: tensor for path, tensor in named if not path.startswith("memory/")}
        return tensors | {alias: tensors[name] for alias, name in self.layout.aliases}

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """All tensors of the state, in their own shapes, by their paths in the store.

        Examples of a path are ``params/fc1.weight`` and ``memory/velocity/fc1.weight``. Raises as `state`.
        """
        return self.state.named(self.layout)

    @property
    def owners(self) -> np.ndarray:
        """The partition of each example in the round, int32 (example,); -1 for held-out and unused examples.

        Raises `RoundMissing` if each partition brought data of its own, and `StoreDamaged` if the stored split
        differs from the committed split.
        """
        return self._store.splits.read(self.commit)

    @property
    def refused(self) -> dict[int, str]:
        """The reason for each refused update, by the number of its partition."""
        return {p: update.refused for p, update in self.commit.updates.items() if update.refused}

    @property
    def absent(self) -> tuple[int, ...]:
        """The partitions that did not answer in time."""
        return self.commit.absent

    @property
    def partition_names(self) -> Sequence[int | str]:
        """The name of each partition of the run; see `Run.partition_names`."""
        return self._store.partition_names

    @property
    def updates(self) -> PartitionArrays:
        """The accepted directions by parameter: ``updates["fc1.weight"]`` is an array ``(partition, *shape)``."""
        specs = self.layout.params

        def read(name: str) -> dict[int, torch.Tensor]:
            return {p: views(specs, self.update(p).direction)[name] for p in self.commit.accepted}

        names = tuple(spec.name for spec in specs)
        nothing = f"round {self.number} has no updates"
        return PartitionArrays(names, read, "parameter {}", nothing, self.partition_names)

    @property
    def permutations(self) -> PartitionArrays:
        """The order of units in each partition, by unit group: ``permutations["fc1"]`` is (partition, unit).

        Only a reduce that matches units, such as ``matched``, gives permutations. Element ``[p, i]`` is the unit
        of partition p that was moved to place i. For mixtures, an array is (partition, unit, unit), and its rows
        are the weights of the mixture.
        """
        return self._matched("permutations")

    @property
    def similarities(self) -> PartitionArrays:
        """The cosine of matched units, by unit group: ``similarities["fc1"]`` is (partition, unit)."""
        return self._matched("similarities")

    def _matched(self, kind: str) -> PartitionArrays:
        def read(group: str) -> dict[int, torch.Tensor]:
            partitions = [p for p, record in self.commit.updates.items() if record.match is not None]
            return {p: match_tensors(self.match(p))[f"{kind}/{group}"] for p in partitions}

        groups = tuple(spec.name for spec in self._store.schema.matches)
        nothing = f"round {self.number} matched no units"
        return PartitionArrays(groups, read, "group of units {} is matched", nothing, self.partition_names)

    def match(self, partition: int | str) -> Match:
        """Return how the units of one partition were matched in this round.

        Args:
            partition: The number of the partition, from 0, or its name.

        Returns:
            Permutations and similarities by unit group, (unit,) each. A mixture in place of a permutation is
            (unit, unit).

        Raises:
            RoundMissing: No units of the partition were matched in this round.
            RoundPruned: The match was pruned.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> run.round(3).match(0).permutation["fc1"]
        """
        return self._store.tensors.read_match(self.commit, self._number(partition))

    def _number(self, partition: int | str) -> int:
        return self._store.find_partition(partition) if isinstance(partition, str) else partition

    def update(self, partition: int | str) -> Update:
        """Return the update that one partition sent in this round, bit for bit.

        Args:
            partition: The number of the partition, from 0, or its name.

        Returns:
            The update, with one vector (element,) for each dtype. `update_tensors` splits the vectors into tensors
            by name.

        Raises:
            RoundMissing: The partition took no part in the round.
            RoundPruned: The update was pruned.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> run.round(3).update(0).direction
        """
        return self._store.tensors.read_update(self.commit, self._number(partition))

    def tensor(self, path: str) -> torch.Tensor:
        """Read one tensor of the state after the round, without the others.

        Args:
            path: The path in the store, one of `Run.tensors`, such as ``params/fc1.weight``.

        Returns:
            The tensor, in its own shape.

        Raises:
            TensorMissing: The run stores no tensor at this path.
            RoundPruned: The state was pruned or never stored.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> run.round(3).tensor("params/fc1.weight").norm()
        """
        paths = self._store.schema.state(1)
        if path not in paths:
            raise TensorMissing(f"no tensor {path!r}; there are {', '.join(paths)}")
        return self._store.tensors.read_tensor(self.commit, path)

    def update_tensors(self, partition: int | str) -> dict[str, torch.Tensor]:
        """Return the update that one partition sent in this round, as tensors by name.

        Args:
            partition: The number of the partition, from 0, or its name.

        Returns:
            The tensors, in their own shapes, by group and name. Directions are ``updates/fc1.weight``. Further
            groups, if there are any, are ``updates/buffers/…``, ``updates/extras/<name>/…``,
            ``updates/observed/…`` and ``carry/<slot>/…``.

        Raises:
            RoundMissing: The partition took no part in the round.
            RoundPruned: The update was pruned.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> run.round(3).update_tensors(0)["updates/fc1.weight"]
        """
        return update_tensors(self.update(partition), self.layout, self._store.schema.observed)

    def load_into(self, network: torch.nn.Module) -> torch.nn.Module:
        """Load the parameters and buffers after the round into a network of your own.

        Args:
            network: A module whose ``state_dict`` has the names and shapes of this run. The module is changed in
                place.

        Returns:
            The same module.

        Raises:
            ShapeMismatch: The module has other names or shapes.
            RoundPruned: The state was pruned or never stored.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> run.round(3).load_into(my_network).eval()
        """
        try:
            load_named(network, self.tensors)
        except RuntimeError as error:
            layout = self.layout
            names = ", ".join(spec.name for spec in (*layout.params, *layout.frozen, *layout.buffers))
            raise ShapeMismatch(f"round {self.number} is of another architecture; it has {names}") from error
        return network

    def network(self, trust: bool = False) -> torch.nn.Module:
        """Build the network, and load the parameters and buffers after this round.

        Args:
            trust: Allows executing the code that the run stores. A run under your own root needs no permission. A
                run from elsewhere needs `trust` if a function of its author builds the network.

        Returns:
            The module, in evaluation mode.

        Raises:
            UsageError: Building the network needs `trust`.
            NotARun: The run does not record how its network is built. Use `load_into` with your own network
                instead.
            ModelError: The network cannot be built.
            RoundPruned: The state was pruned or never stored.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> logits = run.round(3).network()(inputs)
        """
        return self.load_into(self._network(trust)).eval()

    def save(self, place: Where) -> None:
        """Write the parameters and buffers after this round to a checkpoint file.

        Args:
            place: The path of the file. An existing file is replaced. The suffix is ``.safetensors``, whose
                metadata name the round, or ``.pt``, ``.pth`` or ``.bin`` for a torch file.

        Raises:
            UsageError: The suffix is another one, the folder is missing, or the format cannot hold the tensors.
            CheckpointError: The file cannot be written.
            RoundPruned: The state was pruned or never stored.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> run.best("accuracy").save("best.safetensors")
        """
        name, scores = run_name(self._store.address), json.dumps(self.score.row() if self.score else {})
        facts = {"run": name, "round": str(self.number), "chain": self.chain, "scores": scores}
        digest = str(self._store.attributes["data"].get("digest", ""))
        write_checkpoint(place, self.tensors, facts | {"data_digest": digest})

    def __repr__(self) -> str:
        parts = (self.number, self.score, f"{len(self.commit.accepted)} updates", self.commit.state[:12])
        return printable(f"<Round {' · '.join(str(part) for part in parts if part is not None)}>")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the text of `str` in IPython and notebooks."""
        printer.text(str(self))

    def __str__(self) -> str:
        """Return several lines: those of `repr`, and a table of the first partitions' updates."""
        import pandas as pd

        updates = dict(islice(self.commit.updates.items(), SHOWN_PARTITIONS))
        rows = [
            {
                "partition": self.partition_names[partition],
                "weight": update.weight,
                "result": printable(update.refused or "accepted"),
            }
            | ({"push": update.arrival.push, "version": update.arrival.version} if update.arrival else {})
            for partition, update in updates.items()
        ]
        metrics = pd.DataFrame([update.metrics for update in updates.values()])
        table = pd.concat([pd.DataFrame(rows), metrics], axis=1)  # a metric may have the name of a column
        shown = table.to_string(index=False, na_rep="", float_format="{:.4g}".format, max_colwidth=LONGEST_CELL)
        more = len(self.commit.updates) - len(updates)
        return "\n".join([repr(self), *[shown] * bool(rows), *[f"and {more} more partitions"] * bool(more)])


@dataclass(frozen=True, eq=False, repr=False)
class PartitionArrays(Mapping[str, "xr.DataArray"]):
    """Arrays of a round by name, each with the partitions as its first axis.

    `read` gives the partitions that have a tensor of a name, and these tensors. bfloat16 is shown as float32. An
    unknown name raises `TensorMissing` with the text `unknown` and the `names`. A name that no partition has
    raises `RoundMissing` with the text `nothing`. `called` has the name of each partition of the run.
    """

    names: tuple[str, ...]
    read: Callable[[str], Mapping[int, torch.Tensor]]
    unknown: str
    nothing: str
    called: Sequence[int | str]

    def __getitem__(self, name: str) -> xr.DataArray:
        import xarray as xr

        if name not in self.names:
            raise TensorMissing(f"no {self.unknown.format(repr(name))}; there are {', '.join(self) or 'none'}")
        tensors = self.read(name)
        if not tensors:
            raise RoundMissing(self.nothing)
        values = shown_array(torch.stack(list(tensors.values())))
        dims = ("partition", *(f"{name}.{axis}" for axis in range(values.ndim - 1)))
        return xr.DataArray(values, dims=dims, coords=named_partitions(self.called, [*tensors]), name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
