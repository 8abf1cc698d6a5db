"""A recipe: which average each tensor has, with which coefficients, checked before anything is merged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.options import check_options, options_of
from roundweave.tasks.matching.averaging import check_layer, is_of_layer, kind_of, largest
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.averages.base import Average, Versions
from roundweave.tasks.merging.averages.interpolations import LinearMean
from roundweave.tasks.merging.averages.settings import Setting, check_filters, positions, setting_at, varies

EACH = ("density",)
"""Options that have a setting for each network, or one for all."""

Recipe = Mapping[str, tuple[Average, tuple[float, ...]]]
"""By the name of each tensor, its average and the coefficients of the networks."""


@dataclass(frozen=True)
class Wanted:
    """A recipe before the tensors are known: a kind of average, and settings of its options and coefficients.

    `layers` has separate coefficients for some layers, by the beginning of their tensors' names.
    """

    kind: type[Average]
    coefficients: tuple[Setting, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seed: int = 0

    def recipe(self, names: Collection[str], buffers: Collection[str] = ()) -> Recipe:
        """Return the recipe for tensors of these names, of which buffers take a mean. Raises `UsageError`."""
        for layer in self.layers:
            check_layer(layer, names)
        self._check_numbers()
        settings = [each for _, each in self.settings()]
        for setting in settings:
            check_filters(setting, names)
        depths = positions(names) if any(map(varies, settings)) else dict.fromkeys(names, 0.0)
        made: dict[Any, tuple[Average, tuple[float, ...]]] = {}
        return {name: self._of(name, depths[name], name in buffers, made) for name in names}

    def settings(self) -> Iterator[tuple[str, Setting]]:
        """Yield all settings, each with the name of its option."""
        yield from (("coefficients", each) for each in self.coefficients)
        for option, given in self.options.items():
            if not isinstance(given, bool | str):
                yield from ((option, each) for each in (given if option in EACH else [given]))

    def _check_numbers(self) -> None:
        count = len(self.coefficients)
        for layer, given in self.layers.items():
            if len(given) != count:
                raise UsageError(f"layer {layer!r}: {count} networks need {count} coefficients, not {list(given)}")
        for option in EACH:
            if (each := self.options.get(option)) and len(each) not in (1, count):
                raise UsageError(
                    f"{option} has {len(each)} values for {count} networks; give one, or one a network"
                )

    def _of(
        self, name: str, depth: float | None, buffer: bool, made: dict[Any, tuple[Average, tuple[float, ...]]]
    ) -> tuple[Average, tuple[float, ...]]:
        """The average and the coefficients of one tensor; `made` has those of tensors that have equal ones."""

        def value(option: str, given: Any) -> Any:
            if isinstance(given, bool | str):
                return given
            if option in EACH:
                return tuple(setting_at(option, each, name, depth) for each in given)
            return setting_at(option, given, name, depth)

        of_layer = (given for layer, given in self.layers.items() if is_of_layer(name, layer))
        own: tuple[float, ...] = next(of_layer, ())
        coefficients = own or tuple(setting_at("coefficients", each, name, depth) for each in self.coefficients)
        options = {option: value(option, given) for option, given in self.options.items()}
        key = (coefficients, *options.values(), buffer)
        if key not in made:
            average = self.kind(**options, seed=self.seed)
            check_options(average)
            average.check(coefficients)
            mean = LinearMean(), tuple(average.buffer_coefficients(coefficients))
            made[key] = mean if buffer else (average, tuple(coefficients))
        return made[key]


def combining(
    recipe: Recipe, states: Sequence[Tensors], base: Tensors | None = None
) -> Callable[[str], torch.Tensor]:
    """Return a function that computes one tensor (*shape) by its name.

    Integer and bool tensors take the maximum.
    """

    def combined(name: str) -> torch.Tensor:
        average, coefficients = recipe[name]
        values = [state[name] for state in states]
        if kind_of(values[0].dtype) == "integer":
            return largest(name, values)
        if values[0].is_complex() and not isinstance(average, LinearMean):
            raise UsageError(f"tensor {name} has complex numbers, which only average = mean takes; give it")
        return average(Versions(name, values, coefficients, None if base is None else base[name]))

    return combined


def check_average(name: str, kind: type[Average], given: Iterable[str], base: bool) -> None:
    """Raise `UsageError` unless the given options are those of the average, and it has a base if it needs one."""
    known = {"coefficients", "layers"} if kind.takes_coefficients else set()
    known |= {*options_of(kind)}
    for option in (option for option in given if option not in known):
        raise UsageError(f"average {name} has no option {option}; it has {', '.join(sorted(known))}")
    if base and not kind.needs_base:
        raise UsageError(f"average {name} takes no base network; leave base out")
    if kind.needs_base and not base:
        raise UsageError(f"average {name} needs the network from which all were trained; give base")
