"""The table of applies by name."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.tables import Entry

APPLIES: Mapping[str, Entry] = {
    "sgd": Entry("gradient descent with momentum", "tasks.applies.sgd:Sgd"),
    "adam": Entry("steps by running moments", "tasks.applies.adaptive:Adam"),
    "adagrad": Entry("steps by the sum of squares", "tasks.applies.adaptive:Adagrad"),
    "yogi": Entry("as adam, its second moment more careful", "tasks.applies.adaptive:Yogi"),
}
