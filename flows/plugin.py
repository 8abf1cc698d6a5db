"""The base class of plugins, which other projects call callbacks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import isfunction, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from warnings import catch_warnings, filterwarnings

from roundweave.flows.config.base import Config
from roundweave.storage.errors import UsageError, failing_as, one_line
from roundweave.tasks.own_code.tables import Table

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.config.experiment import Dealing
    from roundweave.flows.planning.plan import Plan
    from roundweave.flows.stored import Run
    from roundweave.storage.errors import ExperimentDiffers
    from roundweave.storage.rounds.commits import Commit
    from roundweave.storage.runs.run import StoredRun
    from roundweave.tasks.data.description import Description
    from roundweave.tasks.data.partitions import Partitions
else:
    ModelMetaclass = type(Config)


ALIKE = 0.8
"""The similarity from which the name of a method counts as a misspelt hook."""


class _Kind(ModelMetaclass):
    """The metaclass of plugins. Raises `UsageError` for a field that no plugin can have."""

    def __new__(cls, name: str, *parts: Any, **given: Any) -> type[Any]:
        with catch_warnings(), failing_as(lambda error: UsageError(f"plugin {name}: {_wrong_field(error)}")):
            filterwarnings("error", "Field name ")
            return super().__new__(cls, name, *parts, **given)


def _wrong_field(error: BaseException) -> str:
    field = re.search(r"[\"'`](\w+)", str(error))
    if field and hasattr(Plugin, field[1]):
        return f"no option can be called {field[1]}; rename it"
    return f"{one_line(error).partition('. ')[0]}; give each option a plain type, such as n: int = 3"


class Plugin(Config, metaclass=_Kind):
    """A feature of a training, also called a callback. Its fields are its options.

    A subclass overrides the hooks that it needs. Give an instance to `train`, or name the class in ``plugins`` of
    a configuration. An error in a hook ends the training with the plugin's name. Committed rounds stay.

    Example:
        >>> class Losses(rw.Plugin):
        ...     watches = True
        ...     def committed(self, run, commit):
        ...         print(commit.round, commit.score.loss)
        >>> config = rw.TrainConfig(executor="inline", rounds=2)
        >>> run = rw.train(config, plugins=[Losses()], bar=False)
    """

    decides: ClassVar[bool] = False
    """Whether the plugin decides bits, for example because it wraps a map.

    It is then part of the experiment: its code and options are recorded, a resumed run must have the same, and a
    replay uses them.
    """
    beside: ClassVar[tuple[str, ...]] = ()
    """The options of a plugin with `decides` that may change when the run is resumed."""
    watches: ClassVar[bool] = False
    """Whether `committed` only looks on, and never ends the training.

    Several rounds are then submitted at once. Otherwise rounds are submitted one by one, so that the training ends
    at exactly the right round.
    """
    last: ClassVar[bool] = False
    """Whether the hooks are called after those of all other plugins, for example to pack what maps send."""
    tables: ClassVar[Mapping[str, Table]] = {}
    """The tables that `roundweave list` shows of the plugin, by title."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Raise `UsageError` for a misspelt hook, and for a hook with the wrong parameters."""
        hooks = {name: [*signature(hook).parameters] for name, hook in vars(Plugin).items() if isfunction(hook)}
        for name in hooks.keys() & vars(cls).keys():
            try:
                signature(vars(cls)[name]).bind(*hooks[name])
            except TypeError as error:
                takes = ", ".join(hooks[name])
                raise UsageError(f"plugin {cls.__name__}: {name} must take ({takes})") from error
        own = [name for name in vars(cls) if not name.startswith("_") and not hasattr(Plugin, name)]
        for name in filter(lambda name: callable(getattr(cls, name, None)), own):
            if close := difflib.get_close_matches(name, hooks, 1, ALIKE):
                raise UsageError(f"plugin {cls.__name__}: did you mean {close[0]} by {name}? Rename {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise UsageError(f"plugin {self.label()} is frozen; keep what it remembers as self._{name}")
        super().__setattr__(name, value)

    @classmethod
    def takes_part(cls, config: TrainConfig) -> bool:
        """Tell whether the plugin takes part in a training. By default it does if one of its options is given."""
        return any(getattr(config, name) != field.get_default() for name, field in cls.model_fields.items())

    @classmethod
    def imply(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return the given values of a configuration and the values that they imply. Every plugin is asked."""
        return given

    def around(self, config: TrainConfig) -> AbstractContextManager[None]:
        """Return a context that is open around the whole training, from before its plan to after its end."""
        return nullcontext()

    def fits(self, config: TrainConfig) -> None:
        """Raise `UsageError` or `ValueError` for fields of a configuration that exclude this plugin."""

    def configure(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration of the run to train now. Called before any look-up, and by `serve`."""
        return config

    def rehearse(self, config: TrainConfig) -> TrainConfig:
        """Check what can be known of later trainings, and return the configuration of one to try now."""
        return config

    def past(self, config: TrainConfig, error: ExperimentDiffers) -> TrainConfig | None:
        """Return the configuration to train if the run of its name is of another experiment; None for an error."""
        return None

    def found(self, config: TrainConfig, run: StoredRun | None) -> TrainConfig:
        """Return the configuration, given the stored `run` of its name; `run` is None for a new run.

        If the returned configuration has another name, its run is looked up again.
        """
        return config

    def deal(self, partitions: Partitions, config: Dealing) -> Partitions:
        """Return the partitions of a run's examples, changed as this plugin decides. Nothing is loaded yet.

        A plugin that overrides this hook decides bits. Its options are also options of `roundweave split`.
        """
        return partitions

    def plan(self, plan: Plan) -> Plan:
        """Return the plan with a slot filled, a part wrapped, or an entry added to a list. The hook is pure."""
        return plan

    def described(self, plan: Plan, description: Description) -> Description:
        """Return the description of a new run's examples, with records or refusals of this plugin added."""
        return description

    def began(self, run: Run) -> None:
        """Called when the run is open, before its next round."""

    def committed(self, run: Run, commit: Commit) -> str | None:
        """Called after each committed round.

        `run` ends with that round. A returned text ends the training, and is recorded.
        """

    def awaits(self) -> tuple[str, ...]:
        """Return the sections that `ended` writes and that the run needs to be complete.

        The run is locked meanwhile.
        """
        return ()

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Called after the last commit, or with the error that ended the training."""

    def promoted(self, run: Run, alias: str) -> None:
        """Called when a person gives the run an alias, and when the run loses an alias."""

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """Return what `roundweave show` says of a run: a text by the name of its line. Every plugin is asked."""
        return {}

    @classmethod
    def summary(cls, run: StoredRun, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``show --json`` says of a run besides what is `known`. Every plugin is asked."""
        return {}

    @classmethod
    def seen(cls, folder: Path, option: str, value: Any) -> Any:
        """Return an option's value in a configuration file of this folder, with paths joined to the folder."""
        return value

    @classmethod
    def label(cls) -> str:
        """Return the name that messages show."""
        return cls.__name__

    @classmethod
    def place(cls) -> str:
        """Return where the class is defined."""
        return f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def part(cls, option: str = "") -> str:
        """Return the part of the configuration that has the plugin's options, or one of them."""
        if option in cls.beside or not cls.decides:
            return "Execution"
        return "Dealing" if cls.deal is not Plugin.deal else "Experiment"

    @classmethod
    def is_ours(cls) -> bool:
        """Tell whether the plugin belongs to this package."""
        return cls.__module__.startswith("roundweave.")

    @classmethod
    def overrides(cls) -> bool:
        """Tell whether the class overrides a hook, or another method of this class."""
        own = {name for kind in cls.__mro__[: cls.__mro__.index(Plugin)] for name in vars(kind) if name[0] != "_"}
        return any(callable(getattr(Plugin, name)) for name in own & vars(Plugin).keys())

    def is_like(self, other: Plugin) -> bool:
        """Tell whether another plugin has the name and the options of this plugin."""
        return (self.label(), self.model_dump()) == (other.label(), other.model_dump())

    @property
    def may_end(self) -> bool:
        """Whether the plugin may end the training after any round."""
        return type(self).committed is not Plugin.committed and not self.watches
