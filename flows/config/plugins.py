"""The known plugins, and configurations that combine the kernel's fields with the plugins' options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, create_model, model_validator

from roundweave.flows.config.algorithms import EVERY_OPTION
from roundweave.flows.config.base import Config, Skipped
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import CODE_RAISES, PluginFailed, RoundweaveError, UsageError, failing_as, located
from roundweave.storage.values.hashing import bytes_digest
from roundweave.tasks.own_code.code import Code, find_code

GROUP = "roundweave.plugins"
"""The group of entry points in which installed packages name their plugins."""

T = TypeVar("T", bound=Config)
V = TypeVar("V")


@functools.cache
def plugin_classes() -> tuple[type[Any], ...]:
    """Return the classes of all plugins: those of this package, then those of installed packages by name."""
    # Imported by name, because the module imports plugins: configurations import none.
    table = import_module("roundweave.flows.plugins").PLUGINS
    homes = [f"roundweave.flows.plugins.{name}" for name in table]
    ours = [_defined_in(import_module(home)) for home in homes if find_spec(home)]
    return (*ours, *packages())


@functools.cache
def packages() -> dict[type[Any], str]:
    """Return the plugins of installed packages, each with its package, version and the digest of its module.

    A plugin that cannot be used is left out with a message. Runs that do not need it go on.
    """
    found = dict[type[Any], str]()
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else ""
        try:
            kind = _loaded(point.value, point.load)
            if lacking := [name for name, field in kind.model_fields.items() if field.is_required()]:
                raise UsageError(f"plugin {point.value}: give {lacking[0]} a default, with which it takes no part")
            found[kind] = f"{package} ({bytes_digest(Path(inspect.getfile(kind)).read_bytes())[:8]})"
        except RoundweaveError as error:
            notice(f"{error}; the plugin of {package} is ignored")
    return found


def _defined_in(module: Any) -> type[Any]:
    classes = [each for each in vars(module).values() if inspect.isclass(each) and hasattr(each, "committed")]
    (found,) = (each for each in classes if each.__module__ == module.__name__)
    return found


def _loaded(named: str, load: Callable[[], Any]) -> type[Any]:
    with failing_as(lambda error: UsageError(f"plugin {named} cannot be loaded: {located(error)}")):
        found: Any = load()
    is_plugin = inspect.isclass(found) and issubclass(found, import_module("roundweave").Plugin)
    if not is_plugin:
        raise UsageError(f"plugin {named} must be a subclass of roundweave.Plugin, not {found!r}")
    if taken := found.model_fields.keys() & OwnPlugin.model_fields.keys():
        raise UsageError(f"plugin {named}: no option can be called {min(taken)}; rename it")
    return found  # type: ignore[no-any-return]


def with_plugins(base: type[T], taken: Iterable[str] = ()) -> type[T]:
    """Add the options of the plugins of one part to that part of the configuration; a decorator.

    Raises `UsageError` for an option that exists already, or whose name is `taken`.
    """
    added: dict[str, Any] = {}
    owners = dict.fromkeys(EVERY_OPTION, "an algorithm")
    owners |= dict.fromkeys((*base.model_fields, *taken), base.__name__) | base.brought
    for plugin in plugin_classes():
        place = plugin.place()
        for name, field in plugin.model_fields.items():
            if owners.setdefault(name, place) != place:
                raise UsageError(f"plugin {place} has an option {name}, as {owners[name]} has; rename it")
            if plugin.part(name) == base.__name__:
                added[name] = field.annotation, field
    made: Any = create_model(base.__name__, __base__=base, __module__=base.__module__, **added)
    made.__doc__, made.__qualname__ = base.__doc__, base.__qualname__
    made.brought = base.brought | {name: owners[name] for name in added}
    return made  # type: ignore[no-any-return]


class OwnPlugin(BaseModel):
    """A plugin of the user's: its class, its options, and whether it decides bits."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | Code
    decides: bool = False

    @model_validator(mode="before")
    @classmethod
    def _with_code(cls, value: Any) -> Any:
        """Add the source of the class, and whether it decides.

        A recorded class may be a stranger's: none of it runs.

        Raises `CodeError`, and `UsageError` if the name is no plugin's.
        """
        match value:
            case OwnPlugin() | {"name": dict(), "decides": bool()}:
                return value
            case {"name": str() | type(), **options} if "decides" not in options:
                given = value
            case str() | type() if not (isinstance(value, str) and ":" not in value):
                given = {"name": value}
            case _:
                raise UsageError(f"a plugin is FILE.py:Class, or a table of this name and options, not {value!r}")
        code = find_code(given["name"])
        plugin = _loaded(code.reference, code.load)
        if plugin.part() == "Dealing":
            raise UsageError(f"plugin {code.reference}: it deals examples, for which a package must bring it")
        return {**given, "name": code, "decides": plugin.decides}

    @property
    def label(self) -> str:
        """The text that messages show: the class, the digest of its code, and its options."""
        options = "".join(f", {name}={value!r}" for name, value in (self.model_extra or {}).items())
        return f"{self.code.reference} ({self.code.digest[:8]}{options})"

    @property
    def code(self) -> Code:
        """The class with its source."""
        return find_code(self.name)

    @classmethod
    def of(cls, plugin: Any) -> OwnPlugin:
        """Return the record of a plugin: the source of its class, and its options. Raises `CodeError`."""
        return cls.model_validate({"name": type(plugin), **plugin.model_dump(mode="json")})

    def made(self) -> Any:
        """Return the plugin itself. Raises `UsageError` for an option that it does not take."""
        with failing_as(lambda error: UsageError(f"plugin {self.label} cannot be made: {located(error)}")):
            return _loaded(self.code.reference, self.code.load)(**(self.model_extra or {}))


def active_plugins(config: Any) -> Iterator[Any]:
    """Return the plugins that take part in a training: those with a given option, and the user's own.

    For a part of a configuration, these are the plugins with options in that part. Plugins with ``last`` come
    last.
    """
    parts = {each.__name__ for each in type(config).mro()}
    named = [kind for kind in plugin_classes() if kind.part() in parts and kind.takes_part(config)]
    found = [kind(**{n: getattr(config, n) for n in kind.model_fields if hasattr(config, n)}) for kind in named]
    # Prefect shows the name in place of a long pickle.
    found += [own.made() for own in getattr(config, "plugins", ()) if isinstance(own.name, Code)]
    yield from sorted(found, key=attrgetter("last"))


@contextmanager
def failing_by_name(plugin: Any) -> Iterator[None]:
    """Inside this context, a foreign error names the failed plugin."""
    try:
        yield
    except (RoundweaveError, Skipped):
        raise
    except CODE_RAISES as error:
        raise PluginFailed(f"plugin {plugin.label()} failed with {located(error)}") from error


def through(value: V, plugins: Iterable[Any], hook: str, *given: Any) -> V:
    """Pass a value through a hook of each plugin in turn. Raises `PluginFailed`, or what plugins refuse."""
    for plugin in plugins:
        with failing_by_name(plugin):
            found = getattr(plugin, hook)(value, *given)
        if not isinstance(found, type(value)):
            must = f"{hook} must return a {type(value).__name__}, not {found!r}"
            raise PluginFailed(f"plugin {plugin.label()} failed: {must}")
        value = found
    return value


def check_fits(config: Any, plugins: Iterable[Any]) -> None:
    """Raise `UsageError` for fields of a configuration that one of the plugins excludes."""
    for plugin in plugins:
        with failing_by_name(plugin):
            try:
                plugin.fits(config)
            except ValueError as error:
                raise UsageError(str(error)) from error
