"""The rule by which training ends early, which each process that commits asks."""

from __future__ import annotations

from dataclasses import dataclass

from roundweave.storage.rounds.commits import Commit, ranking


@dataclass(frozen=True)
class Rule:
    """Says why training stops after a commit; None if it goes on. `best` names the score that counts."""

    target_accuracy: float | None
    patience: int | None
    best: str

    def __call__(self, commit: Commit) -> str | None:
        accuracy = commit.score.accuracy if commit.score else None
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return f"accuracy {accuracy:.4f} has reached the target {self.target_accuracy}"
        if self.patience is not None and commit.since_best >= self.patience:
            return f"{commit.since_best} scores without a better {ranking(self.best)[0]} than {commit.best:.6g}"
        return None
