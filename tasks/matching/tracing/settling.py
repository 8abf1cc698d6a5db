"""Settle a trace: which choices stand, and which units may depend on which others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tasks.matching.tracing.axes import OPERATION, Atom, find, keep_choice, union, walk
from tasks.matching.tracing.blocks import Block, products, stages
from tasks.matching.tracing.trace import Trace

Companions = dict[Atom, set[Atom]]


def settle(trace: Trace) -> None:
    """Undo choices that are not legal: beside what they depend on, units must stand wherever they stand."""
    OPERATION.set("that stacks or selects")
    while True:
        heads = _heads(trace)
        if sum(_tidy(head) for head in heads):
            continue
        if not heads:
            return
        together = companions(trace)
        illegal = [head for head in heads if not set(head.chosen) <= together.get(head, set())]
        if not illegal:
            return
        for head in illegal:
            _give_up(head, next(iter(head.chosen), None))


def _heads(trace: Trace) -> list[Atom]:
    """All units with choices, in an order that does not depend on the process."""
    seen: set[Atom] = set()
    tensors = (*trace.tensors.values(), *trace.intermediate.values())
    return [atom for axes in tensors for axis in axes for atom in walk(axis, seen) if atom.chosen]


def _tidy(head: Atom) -> bool:
    """Bring choices under the present names of what they depend on; give up those that make no sense."""
    if find(head) is not head:
        return False
    for beside in head.chosen:
        if find(beside) is not beside:
            for index, atom in head.chosen.pop(beside).items():
                keep_choice(head, beside, index, atom)
            return True
    for number, (beside, choices) in enumerate(head.chosen.items()):
        reached = set(walk([[choice] for choice in choices.values()]))
        changed = number > 0 or head.parts is not None or head.pinned is not None or beside.parts is not None
        if changed or head in reached or beside in reached:
            return _give_up(head, beside)
    return False


def _give_up(head: Atom, beside: Atom | None) -> bool:
    """Let the units be the same at each index of what they depended on."""
    choices = head.chosen.pop(beside, {}) if beside is not None else {}
    for atom in choices.values():
        union(head, atom)
    return True


def companions(trace: Trace) -> Companions:
    """For each unit, those that stand beside it, once, wherever it stands and wherever it is summed over."""
    together: Companions = {}
    for members, around in trace.dependences():
        for block in products([*members, *around]):
            for stage in stages(block):
                present = Counter((*stage.atoms, *stage.fixed))
                beside = {atom for atom, count in present.items() if count == 1}
                for atom, axis in zip(stage.atoms, stage.axes, strict=True):
                    if axis < len(members):
                        together[atom] = together[atom] & beside if atom in together else beside
    return {atom: others - {atom} for atom, others in together.items()}


def ancestors(free: Iterable[Atom], together: Companions, parts: Iterable[Block]) -> dict[Atom, tuple[Atom, ...]]:
    """For each unit the chain of others on whose index its order may depend, the outermost first.

    The dimensions of an attention head may be permuted for each head alone, since wherever they stand the head
    stands beside them.
    """
    order = {atom: number for number, atom in enumerate(free)}
    depends: dict[Atom, set[Atom]] = {}
    for atom in order:
        beside = together.get(atom, set()) & order.keys()
        depends[atom] = {other for other in beside if atom not in together.get(other, set())}
    for part in parts:
        for atom in set(part.atoms) & order.keys():
            depends[atom] &= {other for other in part.atoms if part.atoms.count(other) == 1}
    return {atom: _chain(atom, depends, order) for atom in order}


def _chain(atom: Atom, beside: Mapping[Atom, set[Atom]], order: Mapping[Atom, int]) -> tuple[Atom, ...]:
    chain: list[Atom] = []
    for other in sorted(beside[atom], key=lambda one: (len(beside[one]), one.size, order[one])):
        if set(chain) == beside[other] & beside[atom] and beside[other] <= beside[atom]:
            chain.append(other)
    return tuple(chain)
