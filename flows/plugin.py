"""The base class of plugins: what hangs on a training, and what other projects call a callback."""

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
"""From which similarity on the name of a method is taken for a misspelt hook."""


class _Kind(ModelMetaclass):
    """The type of the classes of plugins; raises `UsageError` for a field that no plugin can have."""

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
    """A feature of a training; its fields are its options. A subclass overrides the hooks that it needs.

    Give an instance to `train`, or name its class in ``plugins`` of a configuration. What a hook raises ends the
    training with the plugin's name; committed rounds stay.

    Attributes:
        decides: Whether the plugin decides bits, as one that wraps a map does. It is then part of the experiment:
            its code and options are recorded, a resumed run must have the same, and a replay uses them.
        beside: Which options of one that decides bits may be others when the run is resumed.
        watches: Whether `committed` only looks on and never ends the training. Several rounds are then submitted
            at once; else one, so that the training ends at the very round.
        last: Whether its hooks are called after those of all others, as one that packs what their maps send.
        tables: What `roundweave list` shows of it, by the table's title.

    Example:
        >>> class Losses(rw.Plugin):
        ...     watches = True
        ...     def committed(self, run, commit):
        ...         print(commit.round, commit.score.loss)
        >>> config = rw.TrainConfig(executor="inline", rounds=2)
        >>> run = rw.train(config, plugins=[Losses()], bar=False)
    """

    decides: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = ()
    watches: ClassVar[bool] = False
    last: ClassVar[bool] = False
    tables: ClassVar[Mapping[str, Table]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Raise `UsageError` for a method that nobody calls, or that cannot be called as the hook of its name."""
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
        """Whether it takes part in a training: where one of its options is not at its default."""
        return any(getattr(config, name) != field.get_default() for name, field in cls.model_fields.items())

    @classmethod
    def imply(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The given values of a configuration, and those that they imply; asked of every plugin there is."""
        return given

    def around(self, config: TrainConfig) -> AbstractContextManager[None]:
        """A context that is open around the whole training, from before its plan to after its end."""
        return nullcontext()

    def fits(self, config: TrainConfig) -> None:
        """Raise `UsageError` or `ValueError` for fields of a configuration that this plugin excludes."""

    def configure(self, config: TrainConfig) -> TrainConfig:
        """The configuration of the run to train now; called before anything is looked up, also by `serve`."""
        return config

    def rehearse(self, config: TrainConfig) -> TrainConfig:
        """Check what can be known of trainings that are due later; returns the configuration of one to try now."""
        return config

    def past(self, config: TrainConfig, error: ExperimentDiffers) -> TrainConfig | None:
        """The configuration to train in place of one whose run is of another experiment; None for none."""
        return None

    def found(self, config: TrainConfig, run: StoredRun | None) -> TrainConfig:
        """The configuration once it is known what there is of the run of its name; None where it is new.

        With another name it is looked up again.
        """
        return config

    def deal(self, partitions: Partitions, config: Dealing) -> Partitions:
        """The partitions of a run's examples with what this plugin decides of them; nothing is loaded yet.

        A plugin that overrides this hook decides bits, and its options are those of `roundweave split`, too.
        """
        return partitions

    def plan(self, plan: Plan) -> Plan:
        """The plan with what this plugin adds: a slot filled, a part wrapped, an entry of a list. It is pure."""
        return plan

    def described(self, plan: Plan, description: Description) -> Description:
        """The description of a new run's examples, with what this plugin records of them, or refuses in them."""
        return description

    def began(self, run: Run) -> None:
        """Called when the run is open, before its next round."""

    def committed(self, run: Run, commit: Commit) -> str | None:
        """Called after each committed round, with which `run` ends; a text ends the training, and says why."""

    def awaits(self) -> tuple[str, ...]:
        """The sections that `ended` writes and without which the run is not complete; it is locked meanwhile."""
        return ()

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Called after the last commit, or with the error that ended the training."""

    def promoted(self, run: Run, alias: str) -> None:
        """Called when a person gives the run an alias, and when the run loses one to another, or to nobody."""

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """What `roundweave show` says of a run, each a line under a name; asked of every plugin there is."""
        return {}

    @classmethod
    def summary(cls, run: StoredRun, known: Mapping[str, Any]) -> dict[str, Any]:
        """What ``show --json`` says of a run besides what is `known`; asked of every plugin there is."""
        return {}

    @classmethod
    def seen(cls, folder: Path, option: str, value: Any) -> Any:
        """The value that a configuration file of this folder gives an option, its paths joined to the folder."""
        return value

    @classmethod
    def label(cls) -> str:
        """The name to show to people."""
        return cls.__name__

    @classmethod
    def place(cls) -> str:
        """Where the class is defined."""
        return f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def part(cls, option: str = "") -> str:
        """The part of the configuration in which its options are, or one of them."""
        if option in cls.beside or not cls.decides:
            return "Execution"
        return "Dealing" if cls.deal is not Plugin.deal else "Experiment"

    @classmethod
    def is_ours(cls) -> bool:
        """Whether it is one of this package."""
        return cls.__module__.startswith("roundweave.")

    @classmethod
    def overrides(cls) -> bool:
        """Whether it overrides a hook, or another method of this class."""
        own = {name for kind in cls.__mro__[: cls.__mro__.index(Plugin)] for name in vars(kind) if name[0] != "_"}
        return any(callable(getattr(Plugin, name)) for name in own & vars(Plugin).keys())

    def is_like(self, other: Plugin) -> bool:
        """Whether another plugin has the name and the options of this one."""
        return (self.label(), self.model_dump()) == (other.label(), other.model_dump())

    @property
    def may_end(self) -> bool:
        """Whether it may end the training after any round."""
        return type(self).committed is not Plugin.committed and not self.watches
