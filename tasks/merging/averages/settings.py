"""Settings: an option's value for all tensors, by filters of their names, or interpolated over numbered layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import at_commas, from_json

Number = Annotated[float, Field(allow_inf_nan=False)]
Gradient = tuple[Number, ...]


class Rule(BaseModel):
    """A value, or a gradient, for the tensors whose names have the text `filter` in them; for all without one.

    A text ``=NAME`` is for the tensor of this name alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Number | Gradient
    filter: str | None = None

    @property
    def part(self) -> str:
        """The text that names must have in them; empty for all."""
        return "" if self.filter in (None, "*") else str(self.filter)

    def fits(self, name: str) -> bool:
        """Tell whether the rule is for a tensor of this name."""
        return name == self.part[1:] if self.part[:1] == "=" else self.part in name


Setting = Number | Gradient | tuple[Rule, ...]
"""A number; numbers that are interpolated from the first layer to the last; or rules, of which the first fits."""


def read_setting(given: object) -> object:
    """Return the setting that a text means: a number, numbers at commas, or JSON."""
    if not isinstance(given, str):
        return given
    if given.lstrip().startswith("["):
        return from_json(given)
    numbers = at_commas(given)
    return numbers[0] if len(numbers) == 1 else numbers


def read_each(given: object) -> object:
    """Return the settings of each network that a text means: one, one each at commas, or a list in JSON."""
    read = read_setting(given)
    return read if isinstance(read, list | tuple) else (read,)


OneSetting = Annotated[Setting, BeforeValidator(read_setting)]
EachSetting = Annotated[tuple[Setting, ...], BeforeValidator(read_each)]

NUMBERED = re.compile(r"(?:^|\.)(\d+)\.")
"""Matches the number of a layer in the name of a tensor, such as that in model.layers.3.mlp.weight."""

STAGED = re.compile(r"(?:^|\.)(?:(?:stages|levels)\.\d+\.(?:blocks|layers)|layers\.\d+\.blocks)\.(\d+)\.")
"""Matches the number of a layer within a numbered stage, such as that in stages.1.blocks.2.weight."""

BEFORE = re.compile(
    r"(^|[._])(emb(?!ed_out)|wte|wpe|pre_?(layer|layr)?norm|ln_pre|norm_pre|(cls|dist|reg|mask)_token|stem|patch)|^(conv|bn)1\."
)
"""Matches names of tensors that a network has before its layers."""

AFTER = re.compile(
    r"norm|ln_f|head|classifier|score|pooler|cls|embed_out|output_layer|vocab_|^(fc|output|logits)\."
)
"""Matches names of tensors that a network has after its layers, if they are none before or between them."""

BETWEEN = re.compile(r"merger|adapter|connector|resampler|projector(?!\.(weight|bias)$)")
"""Matches names of tensors between the layers of two stacks, such as those of pictures and of words."""


APART = re.compile(r"(head|classifier|projector|connector|resampler|adapter|merger)\w*\.$")
"""Matches what stands before a number in names of parts of a head, or between two stacks, which are no layers."""


def positions(names: Iterable[str]) -> dict[str, float | None]:
    """How deep each tensor lies by its name: 0 for the first numbered layer and before, 1 for the last and after.

    None if the name says neither. Layers in stages, as layer1.0 and layer2.0, are one stack, and an encoder's and
    a decoder's are two.

    Raises `UsageError` if no layer is numbered.
    """
    matches = {name: STAGED.search(name) or NUMBERED.search(name) for name in names}
    apart = {name for name, match in matches.items() if match and APART.search(name[: match.start(1)])}
    layers = {n: _layer(match) if match and n not in apart else None for n, match in matches.items()}
    stacks: dict[str, set[tuple[int, ...]]] = {}
    for stack, numbers in filter(None, layers.values()):
        stacks.setdefault(stack, set()).add(numbers)
    if not stacks:
        raise UsageError("no tensor is of a numbered layer, so no setting can go from the first to the last")
    orders = {stack: sorted(each) for stack, each in stacks.items()}

    def position(stack: str, numbers: tuple[int, ...]) -> float:
        order = orders[stack]
        return order.index(numbers) / (len(order) - 1) if len(order) > 1 else 1.0

    ends = {name: 1.0 if is_after(name) else 0.0 if is_before(name) else None for name in layers}
    return {name: position(*layer) if layer else ends[name] for name, layer in layers.items()}


def _layer(match: re.Match[str]) -> tuple[str, tuple[int, ...]]:
    """The stack that a layer is of, by its name without numbers, and the layer's numbers, of its stage first."""
    name = match.string[: match.end(1)]
    return re.sub(r"\d+", "", name), tuple(map(int, re.findall(r"\d+", name)))


def is_before(name: str) -> bool:
    """Tell whether a tensor outside of the layers is before them by its name, as an embedding is."""
    return bool(BEFORE.search(name))


def is_after(name: str) -> bool:
    """Tell whether a tensor outside of the layers is after them by its name, as a head is."""
    return bool(AFTER.search(name)) and not is_before(name) and not BETWEEN.search(name)


def varies(setting: Setting) -> bool:
    """Tell whether a setting has a gradient, for which layers must be numbered."""
    return isinstance(setting, tuple) and any(not isinstance(each, Rule) or varies(each.value) for each in setting)


def rules_of(setting: Setting) -> list[Rule]:
    """Return the rules of a setting; none if it is a number, or numbers."""
    return [each for each in setting if isinstance(each, Rule)] if isinstance(setting, tuple) else []


def check_filters(setting: Setting, names: Collection[str]) -> None:
    """Raise `UsageError` for a rule whose filter is in none of the tensors' names."""
    for rule in rules_of(setting):
        if not any(map(rule.fits, names)):
            raise UsageError(f"filter {rule.part!r} is in the name of no tensor; there are {', '.join(names)}")


def setting_at(option: str, setting: Setting, name: str, position: float | None) -> float:
    """Return the value of a setting for one tensor. Raises `UsageError` if no rule, or no number, is for it."""
    if not isinstance(setting, tuple):
        return float(setting)
    rules = rules_of(setting)
    if not rules and position is None:
        raise UsageError(
            f"{option}: {name} is of no layer, and its name does not say whether it lies before or after them; "
            "give it a rule with a filter"
        )
    if not rules:
        assert position is not None
        return interpolated([float(number) for number in setting if not isinstance(number, Rule)], position)
    chosen = next((rule.value for rule in rules if rule.fits(name)), None)
    if chosen is None:
        raise UsageError(f"{option} has no value for {name}; end the list with a value without a filter")
    return setting_at(option, chosen, name, position)


def interpolated(gradient: Sequence[float], position: float) -> float:
    """Return the value at a position from 0 to 1 of the line through evenly spaced values."""
    scaled = position * (len(gradient) - 1)
    low = min(int(scaled), len(gradient) - 1)
    high = min(low + 1, len(gradient) - 1)
    return (1 - (scaled - low)) * gradient[low] + (scaled - low) * gradient[high]
