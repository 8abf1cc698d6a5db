"""Which round of another run a run came from, as its record tells it."""

from __future__ import annotations

from typing import Any

from flows.stored import Round


def parent_of(round: Round) -> dict[str, Any]:
    """The run's name, the round's number, and the chain of its record, which vouches for all before it."""
    return {"run": round._run.name, "round": round.number, "chain": round.chain}
