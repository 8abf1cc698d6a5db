"""In no order of ends, rollbacks, pins and removals is the champion worse, or its export another network.

Three nights that were trained before are put through every order of what may happen to an alias, in a real store;
what an order has done is undone by putting the files back. States that were reached before are not gone on from.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import roundweave as rw
from roundweave.flows.config.plugins import active_plugins
from roundweave.flows.config.recorded import recorded_config
from roundweave.flows.plugins.gate import judging
from roundweave.flows.plugins.gate.giving import give_by_hand
from roundweave.storage.errors import RoundweaveError
from roundweave.storage.runs.names import Holding, alias_history, run_address
from roundweave.storage.runs.removing import Eligible, remove
from roundweave.storage.runs.run import open_stored
from tests.flows.nights import trained

ROUNDS = {"first": 1, "good": 8, "bad": 3}
"""How many rounds each night has; the more, the lower is the loss on the validation data."""


def end(root: Path, name: str) -> None:
    """The end of a night, also of one that is resumed or tried again: what its plugins do."""
    run = rw.open_run(name, root)
    for plugin in active_plugins(recorded_config(run, root, False, {})):
        plugin.ended(run, None)


def roll_back(root: Path) -> None:
    """By hand, to who had the alias before."""
    former = [entry.run for entry in alias_history(root, "champion") if entry.run]
    give_by_hand(root, "champion", former[-2] if len(former) > 1 else "first", "the newest is bad in production")


def remove_first(root: Path) -> None:
    address = run_address(root, "first")
    list(remove(Eligible(named={address}).removals(root, {address: open_stored("first", root)})))


STEPS: dict[str, Callable[[Path], Any]] = {
    "first ends": lambda root: end(root, "first"),
    "good ends": lambda root: end(root, "good"),
    "bad ends": lambda root: end(root, "bad"),
    "good is resumed": lambda root: end(root, "good"),
    "first is removed": remove_first,
    "rolled back": roll_back,
    "taken back": lambda root: give_by_hand(root, "champion", None, "nobody is good enough", pinned=True),
    "pinned": lambda root: give_by_hand(root, "champion", "champion", "it is good", pinned=True),
}
"""What may happen; a step that is refused in a line leaves nothing."""

BY_HAND = {"rolled back", "taken back", "pinned"}


class Orders:
    """Goes through all orders of the steps from a root where no alias is."""

    def __init__(self, root: Path) -> None:
        self.root, self.current = root, root.parent / "current"
        self.kept = root.parent / "kept"
        shutil.copytree(root, self.kept)
        self.seen = set[Any]()
        self.steps = 0
        self.tensors = {name: rw.open_run(name, root).round("last").tensors for name in ROUNDS}
        self.losses = {n: rw.open_run(n, root).round("last").score.values["validation_loss"] for n in ROUNDS}

    def entries(self) -> list[Holding]:
        return alias_history(self.root, "champion")

    def walk(self, left: frozenset[str]) -> None:
        for step in sorted(left):
            saved, before = self.save(), self.entries()
            with suppress(RoundweaveError):
                STEPS[step](self.root)
            self.steps += 1
            self.check(step, before, self.entries())
            rest, state = left - {step}, self.state(left - {step})
            if state not in self.seen:
                self.seen.add(state)
                self.walk(rest)
            self.restore(saved)

    def state(self, left: frozenset[str]) -> Any:
        """All by which what follows is decided."""
        entries = self.entries()
        former = [entry.run for entry in entries if entry.run][-2:]
        last = [(entry.run, entry.by_hand, entry.pinned) for entry in entries[-1:]]
        held = frozenset(entry.run for entry in entries)
        return left, (self.root / "first.zarr").exists(), held, (*former,), (*last,)

    def check(self, step: str, before: list[Holding], after: list[Holding]) -> None:
        """Only by hand is the champion worse, or another than who was pinned; `current` is the champion's."""
        holder = after[-1].run if after else None
        if len(after) > len(before) and before and step not in BY_HAND:
            former = before[-1]
            assert not former.pinned, step
            assert former.run is None or self.losses[str(holder)] <= self.losses[former.run], (step, before)
        if holder is not None:
            exported = load_file(self.current / "model.safetensors")
            assert all(exported[name].equal(tensor) for name, tensor in self.tensors[holder].items()), step

    def save(self) -> dict[Path, bytes]:
        folders = (self.root / ".aliases", self.current)
        return {file: file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file()}

    def restore(self, saved: dict[Path, bytes]) -> None:
        for folder in (self.root / ".aliases", self.current):
            shutil.rmtree(folder, ignore_errors=True)
        for file, content in saved.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        if not (self.root / "first.zarr").exists():
            shutil.copytree(self.kept / "first.zarr", self.root / "first.zarr")


SOME = {"first ends", "good ends", "bad ends", "rolled back", "taken back", "first is removed"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("began", "steps"),
    [
        ("as it ends", SOME),
        *(pytest.param(began, {*STEPS}, marks=pytest.mark.slow) for began in ("before all", "as it ends")),
    ],
)
def test_no_order_has_a_worse_champion_or_hands_out_another_network(tmp_path, monkeypatch, began, steps) -> None:
    """The nights began before any of the steps, or each of them at its own end."""
    monkeypatch.chdir(tmp_path)
    fields = {"validation": "digits", "accept": "validation_loss <= parent", "promote": "champion"}
    for name, rounds in ROUNDS.items():
        start = {"start_from": "first@-1"} if name == "good" else {"seed": rounds}
        trained(name=name, rounds=rounds, export=["current"], **fields, **start)
    for folder in (tmp_path / "runs/.aliases", tmp_path / "current"):
        shutil.rmtree(folder)
    compared = cache(lambda run, holder: judging_of(rw.open_run(run), holder))
    judging_of = judging.champion_of
    monkeypatch.setattr(judging, "champion_of", lambda run, holding: compared(run.name, holding))
    if began == "as it ends":
        monkeypatch.setattr(judging.Challenger, "_began", float("inf"))
    orders = Orders(tmp_path / "runs")
    assert sorted(orders.losses, key=orders.losses.__getitem__) == ["good", "bad", "first"]
    orders.walk(frozenset(steps))
    holders = {run for _, _, held, _, _ in orders.seen for run in held}
    assert holders == {"first", "good", "bad", None}, "each night was champion in some order"
    assert orders.steps > 300
