"""Calls the hooks of a training's plugins, in the plugins' order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from roundweave.flows.config.base import Skipped
from roundweave.flows.config.plugins import active_plugins, failing_by_name
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.plugin import Plugin
from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import Run
from roundweave.storage.errors import PluginFailed, RoundweaveError, located
from roundweave.storage.places.base import Where
from roundweave.storage.rounds.commits import ENDING, Commit


@contextmanager
def around(config: TrainConfig, more: Sequence[Plugin] = ()) -> Iterator[None]:
    """Open the contexts of all plugins around a training of this configuration."""
    with ExitStack() as stack:
        for plugin in (*active_plugins(config), *more):
            with failing_by_name(plugin):
                context = plugin.around(config)
            stack.enter_context(context)
        yield


class Hooks:
    """The hooks of plugins around the training of a run. An error in a hook carries the plugin's name.

    `over` tells whether a plugin has ended the training.
    """

    def __init__(self, plugins: Sequence[Any], address: str, root: Where) -> None:
        self._plugins, self._place = plugins, (address, root)
        self.over = False
        self._watching = [each for each in plugins if type(each).committed is not Plugin.committed]

    @property
    def may_end(self) -> bool:
        """Whether a plugin may end the training after any round."""
        return any(plugin.may_end for plugin in self._plugins)

    def began(self, rounds: int) -> None:
        """Handle that the run is open.

        The run is over if a plugin ended it before, unless more rounds are wanted now.
        """
        self.run = Run(*self._place)
        ending = self.run.section(ENDING)
        self.over = ending is not None and ending["rounds"] >= rounds
        for plugin in self._plugins:
            with _named(plugin, self.run):
                plugin.began(self.run)

    def committed(self, commit: Commit, rounds: int) -> None:
        """Handle that a round was committed, and record the reason if a plugin ends the training."""
        if not self._watching:
            return
        self.run.refresh(until=commit.round)  # later rounds may be committed already
        for plugin in self._watching:
            with _named(plugin, self.run):
                why = plugin.committed(self.run, commit)
                if not isinstance(why, str | None):
                    raise TypeError(f"committed returns a text that says why training ends, or None, not {why!r}")
                if why is not None and plugin.watches:
                    raise TypeError("watches = True says that it never ends the training, and it returned a text")
            if why and commit.round < rounds:
                self.over = True
                self.run.write_section(ENDING, {"by": plugin.label(), "why": str(why), "rounds": rounds})

    def stop_at_once(self, commit: Commit, why: str) -> None:
        """Stop the training by a rule, although it could go on. Whoever resumes the run asks the rule again."""
        self.run.write_section(ENDING, {"by": f"round {commit.round}", "why": why, "rounds": 0})

    def seal(self) -> None:
        """Handle the end of the training: write what the run awaits, while the run is locked."""
        for plugin in self._plugins:
            if plugin.awaits():
                with _named(plugin, self.run.refresh()):
                    plugin.ended(self.run, None)

    def ended(self, error: BaseException | None) -> Run:
        """Handle the end of the training after the run is unlocked.

        Raises a plugin's error once all were called.
        """
        run, failed = Run(*self._place), list[RoundweaveError]()
        for plugin in self._plugins:
            if error is None and plugin.awaits():
                continue
            try:
                with _named(plugin, run):
                    plugin.ended(run, error)
            except RoundweaveError as raised:
                failed.append(raised)
        for each in failed if error else failed[1:]:
            notice(str(each))
        if failed and error is None:
            raise failed[0]
        return run


@contextmanager
def _named(plugin: Plugin, run: Run) -> Iterator[None]:
    """Inside this context, a foreign error names the failed plugin, and says that committed rounds stay."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Skipped) or (isinstance(error, RoundweaveError) and plugin.is_ours()):
            raise
        stays = f"the {run.refresh().done} rounds of {run.name} stay, `roundweave resume {run.name}` continues"
        raise PluginFailed(f"plugin {plugin.label()} failed with {located(error)}; {stays}") from error
