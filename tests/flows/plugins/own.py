"""A user's plugins, as a file of their own, a module and a package have them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

import roundweave as rw

HOOKS = ("configure", "plan", "began", "committed", "ended")


class Trace(rw.Plugin):
    """Appends to a file which hooks are called; one of them may fail.

    The second line is not listed.
    """

    trace: Path | None = None
    fails: str | None = None

    def say(self, hook, *words):
        with self.trace.open("a") as file:
            print(hook, *words, file=file)
        if hook == self.fails:
            raise ValueError("oh")

    def configure(self, config):
        self.say("configure")
        return config

    def plan(self, plan):
        self.say("plan")
        return plan

    def began(self, run):
        self.say("began", run.done)

    def committed(self, run, commit):
        self.say("committed", commit.round)

    def ended(self, run, error):
        self.say("ended", run.done, error)


class Ends(rw.Plugin):
    """Ends the training after a round."""

    at: int

    def committed(self, run, commit):
        return f"that was round {self.at}" if commit.round >= self.at else None


@dataclass(frozen=True)
class Rule:
    """Ends the training after a round, as whoever commits it asks."""

    at: int

    def __call__(self, commit):
        return f"that was round {self.at}" if commit.round >= self.at else None


class Ruled(rw.Plugin):
    """Adds a rule to those by which a commit may be the last."""

    at: int

    def plan(self, plan):
        return plan.add(stops=Rule(self.at))


class Watches(Ends):
    """Says that it never ends the training, and does."""

    watches: ClassVar[bool] = True


@dataclass(frozen=True)
class Noisy(rw.Wrapping):
    """A map that adds seeded noise to what another sends."""

    size: float = 0.0

    def __call__(self, objective, state, examples, carry, seed):
        update = self.map(objective, state, examples, carry, seed)
        draws = torch.Generator().manual_seed(seed)
        noise = {k: self.size * torch.randn(v.shape, generator=draws) for k, v in update.direction.items()}
        return replace(update, direction={k: v + noise[k] for k, v in update.direction.items()})


class Noise(rw.Plugin):
    """Adds noise to what partitions send."""

    decides: ClassVar[bool] = True

    size: float

    def plan(self, plan):
        return plan.wrap(map=lambda inner: Noisy(inner, self.size))


class Hiss(Noise):
    """Adds noise where its size is given."""

    size: float = 0.0


class Again(rw.Plugin):
    """Has an option of a name that there is."""

    retries: int = 0
