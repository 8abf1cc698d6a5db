"""The options of a merge that averages have, and which of them the chosen average takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from roundweave.flows.config.base import Config, checked_by
from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.options import options_of
from roundweave.tasks.merging.averages.base import Average
from roundweave.tasks.merging.averages.recipe import Wanted, check_average
from roundweave.tasks.merging.averages.settings import EachSetting, OneSetting, rules_of, varies
from roundweave.tasks.merging.averages.table import AVERAGES
from roundweave.tasks.own_code.tables import unknown

SEARCHED = {
    "auto": "the best of mean, regmean and pleas by held-out loss",
    "best": "the best point on the path between two networks",
    "regmean": "the mean, with each layer solved by Gram matrices of its inputs",
    "pleas": "the mean, with each layer fitted to the outputs of the networks' layers",
    "fisher": "the mean, with each element weighted by its Fisher information in each network",
}
"""What `average` may be besides the averages of the table, which are functions of tensors alone."""


ABOUT = SEARCHED | {name: entry.about for name, entry in AVERAGES.items()}
"""What each average is."""

OPTIONS = ("t", "scaling", "density", "normalize", "elect", "rescale")
"""The fields of a merge that are options of averages of the table."""


def options_with_defaults(average: str) -> str:
    """Return what an average takes, as a line."""
    if average in SEARCHED:
        return {"best": "", "fisher": "coefficients"}.get(average, "coefficients, shrinkage")
    kind = AVERAGES[average].load()
    own = {name: default for name, (_, default) in options_of(kind).items()}
    plain = {name: default[0] if isinstance(default, tuple) else default for name, default in own.items()}
    named: str = "base, " * kind.needs_base + "coefficients, layers, " * kind.takes_coefficients
    return named + ", ".join(f"{name}={default}" for name, default in plain.items())


def _check_known(name: str) -> None:
    if name not in ABOUT:
        raise unknown("average", name, ABOUT)


AverageName = Annotated[str, checked_by(_check_known), WithJsonSchema({"type": "string", "enum": [*ABOUT]})]


def _about(average: str, option: str) -> str:
    """Return the description of an option, as the average that has it gives it."""
    annotation, _ = options_of(AVERAGES[average].load())[option]
    return next(str(each.description) for each in annotation.__metadata__ if getattr(each, "description", None))


class RecipeConfig(Config):
    """How tensors are averaged.

    A setting is a number, numbers that are interpolated from the first numbered layer to the last, or a list of
    tables with a `value` and a `filter`, the text that names of tensors have in them.
    """

    average: AverageName | None = Field(
        default=None, description=f"average of the tensors: {', '.join(ABOUT)}; default: auto with data, else mean"
    )
    coefficients: EachSetting | None = Field(
        default=None,
        description="weight of each network, such as its number of examples (1000,3000), or JSON; default: equal",
    )
    layers: dict[str, tuple[float, ...]] | None = Field(
        default=None,
        description="different coefficients for some layers, by the prefix of their tensors' names",
        examples=[{"fc1": [1, -0.5]}],
    )
    base: str | None = Field(
        default=None, description="base network (file or stored round) from which all networks were trained"
    )
    t: OneSetting | None = Field(default=None, description=f"slerp: {_about('slerp', 't')}; default: 0.5")
    scaling: OneSetting | None = Field(default=None, description=f"{_about('ties', 'scaling')}; default: 1")
    density: EachSetting | None = Field(
        default=None, description=f"{_about('ties', 'density')}; default: 0.2 (ties), 0.1 (dare)"
    )
    normalize: bool | None = Field(
        default=None, description=f"{_about('mean', 'normalize')}; default: for mean and ties"
    )
    elect: Literal["sum", "count"] | None = Field(default=None, description=_about("ties", "elect"))
    rescale: bool | None = Field(
        default=None, description=f"dare: {_about('dare_linear', 'rescale')}; default: yes"
    )

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The coefficients if all are given and numbers."""
        given = self.coefficients or ()
        plain = tuple(each for each in given if isinstance(each, int | float))
        return plain if given and len(plain) == len(given) else None

    def shares(self, count: int) -> tuple[float, ...]:
        """Coefficients of `count` networks for a mean: those that are given, if they can be shares, else equal."""
        given = self.numbers
        return given if given and min(given) >= 0 and sum(given) > 0 else (1.0,) * count

    def wanted(self, count: int, seed: int) -> Wanted | None:
        """Return the recipe of `count` networks; None if the average is none, or the mean by numbers alone."""
        options = self._options()
        own = self.layers or options or (self.coefficients and self.shares(count) != self.numbers)
        kind = self._kind()
        if kind is None or (self.average == "mean" and not own):
            return None
        return Wanted(kind, self.coefficients or (1.0,) * count, options, self.layers or {}, seed)

    def _options(self) -> Mapping[str, Any]:
        given = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in given.items() if value is not None}

    def check_recipe(self, count: int) -> None:
        """Raise `UsageError` if options do not fit the average or `count` networks."""
        if self.coefficients and len(self.coefficients) != count:
            raise UsageError(
                f"{count} networks need {count} coefficients, not {len(self.coefficients)}; give one a network"
            )
        given = [name for name in ("coefficients", "layers") if getattr(self, name)] + [*self._options()]
        if self.average and (kind := self._kind()):
            check_average(self.average, kind, given, self.base is not None)
            self._check_numbers(count)
            return
        if self.coefficients and self.numbers != self.shares(count):
            raise UsageError(
                f"coefficients {list(self.coefficients)} must be numbers, none negative and not all zero; "
                f"average = mean or task_arithmetic takes others"
            )
        for option in [each for each in given if each != "coefficients"] + ["base"] * (self.base is not None):
            raise UsageError(f"{option} is an option of averages; give one that has it: {', '.join(AVERAGES)}")

    def _kind(self) -> type[Average] | None:
        """Return the average of the table, if it is one."""
        entry = AVERAGES.get(self.average or "")
        kind: type[Average] | None = entry.load() if entry else None
        return kind

    def _check_numbers(self, count: int) -> None:
        """Raise `UsageError` before anything is read where numbers do not fit, whatever the tensors' names are."""
        wanted = self.wanted(count, 0)
        every = [each for _, each in wanted.settings()] if wanted else []
        if wanted and not self.layers and not any(varies(each) or rules_of(each) for each in every):
            wanted.recipe(("",))
