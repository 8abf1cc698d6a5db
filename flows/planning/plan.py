"""The plan of a training: what its configuration means, decided once, before any process starts.

All mistakes that can be found without other processes are reported here, in the same order for all callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from roundweave.flows.config.plugins import active_plugins, packages, through
from roundweave.flows.config.recorded import check_same_examples, check_same_experiment
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.completing import complete, deal
from roundweave.flows.planning.naming import address_of_run, configure, find
from roundweave.storage.errors import UsageError, nearest
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.runs.names import run_name
from roundweave.storage.runs.run import Opener, StoredRun, open_stored
from roundweave.storage.upkeep.keep import Keep
from roundweave.tasks.algorithms.algebra import Algorithm, Apply, Map, Mixing, Reduce
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.data.meaning import NO_NAMES
from roundweave.tasks.data.partitions import Partitions, forget_examples
from roundweave.tasks.data.splits.placement import ANYWHERE, Placement
from roundweave.tasks.data.splits.split import Asked, Sampler
from roundweave.tasks.networks.start import Start
from roundweave.tasks.rounds.job import Patience
from roundweave.tasks.rounds.scorers import Scorer

if TYPE_CHECKING:
    from roundweave.tasks.rounds.schedule import Schedule

T = TypeVar("T")

DECIDING = ("algorithm", "partitions", "placement", "schedule", "sampler", "mixing", "mapper")
"""The fields of a plan that decide bits. Only a plugin with ``decides`` may change them."""

Check = Callable[[Any], None]
"""Raises an error if what is `Described` may not be trained."""


Stop = Callable[[Commit], str | None]
"""Returns why training ends after a commit, given its round, score, best and since_best; None to go on."""


@dataclass(frozen=True)
class Plan:
    """What a configuration means: one frozen value, decided before any process starts.

    A plugin returns a changed plan from its hook ``plan``: `fill` fills a slot, `add` extends a list, and `wrap`
    wraps a part of the algorithm. The examples are not described yet.

    Args:
        config: The complete configuration, with the source of the user's functions.
        run: The stored run that is resumed or computed again; None for a new run.
        algorithm: The map, the reduce and the apply.
        partitions: The partitions of the examples.
        keep: The policy for what stays of rounds.
        schedule: Decides which partition begins when; None if all partitions of a round begin together.
        sampler: Draws the partitions of each round; None takes all.
        placement: Where the examples of each partition stay.
        patience: How long a round waits for late partitions; None waits for ever.
        mixing: Averages the partitions' own networks before a round; None for one common network.
        plugins: The plugins that take part.
        mapper: Computes the maps.
        scorers: Score each round.
        checks: Raise errors for examples that may not be trained on, once they are described.
        stops: Each is asked after a commit whether the training ends.
        needs_scores: Options that are refused if no examples are held out.
        filled: The option that filled each slot.

    Example:
        >>> class LowLoss(rw.Plugin):
        ...     least: float = 0.1
        ...     def plan(self, plan):
        ...         return plan.add(stops=lambda commit: "low loss" if commit.score.loss < self.least else None)
        >>> run = rw.train(rw.TrainConfig(executor="inline", rounds=1), bar=False, plugins=[LowLoss()])
    """

    config: TrainConfig
    run: StoredRun | None
    algorithm: Algorithm
    partitions: Partitions
    keep: Keep
    schedule: Schedule | None = None
    sampler: Sampler | None = None
    placement: Placement = ANYWHERE
    patience: Patience | None = None
    mixing: Mixing | None = None
    plugins: tuple[Any, ...] = ()
    mapper: Mapper = field(default_factory=Mapper)
    scorers: tuple[Scorer, ...] = (Scorer(),)
    checks: tuple[Check, ...] = ()
    stops: tuple[Stop, ...] = ()
    needs_scores: tuple[str, ...] = ()
    filled: Mapping[str, str] = field(default_factory=dict)

    def fill(self, option: str, **slots: Any) -> Plan:
        """Return the plan with slots filled in the name of an option.

        Raises `UsageError` if another option has filled a slot. The message names both options.
        """
        self._check_names(slots)
        for slot in slots:
            if slot in self.filled:
                raise UsageError(f"{option} and {self.filled[slot]} both decide the {slot}; leave one of them out")
        return replace(self, **slots, filled={**self.filled, **dict.fromkeys(slots, option)})

    def owner(self, slot: str) -> str:
        """Return the option that filled a slot, or the slot's own name if a plugin replaced its value."""
        return self.filled.get(slot, slot)

    def add(self, **entries: Any) -> Plan:
        """Return the plan with one more entry in each of these lists, such as ``stops``."""
        self._check_names(entries)
        longer: dict[str, Any] = {name: (*getattr(self, name), entry) for name, entry in entries.items()}
        return replace(self, **longer)

    def _check_names(self, names: Iterable[str]) -> None:
        known = [each.name for each in fields(self)]
        if unknown := [name for name in names if name not in known]:
            hint = nearest(unknown[0], known, f"it has {', '.join(known)}")
            raise UsageError(f"a plan has no {unknown[0]}; {hint}")

    def wrap(
        self,
        map: Callable[[Map], Map] | None = None,
        reduce: Callable[[Reduce], Reduce] | None = None,
        apply: Callable[[Apply], Apply] | None = None,
    ) -> Plan:
        """Return the plan with wrapped parts of its algorithm. `Wrapping` is the base of maps around a map."""
        given = {"map": map, "reduce": reduce, "apply": apply}
        parts: Any = {name: wrapper(getattr(self.algorithm, name)) for name, wrapper in given.items() if wrapper}
        return replace(self, algorithm=replace(self.algorithm, **parts))

    @property
    def new(self) -> bool:
        """Whether the run is a new one."""
        return self.run is None

    @property
    def address(self) -> str:
        """The present or future place of the run."""
        return self.run.address if self.run else address_of_run(self.config)

    @property
    def awaits(self) -> list[str]:
        """The sections that the run needs to be complete, besides its rounds."""
        return [section for plugin in self.plugins for section in plugin.awaits()]

    @property
    def decided_by(self) -> dict[str, str]:
        """The plugins of installed packages that decide bits, and their packages.

        The run does not keep their code.
        """
        deciding = {type(plugin) for plugin in self.plugins if plugin.decides}
        return {kind.place(): package for kind, package in packages().items() if kind in deciding}

    @property
    def name(self) -> str:
        """The name of the run."""
        return run_name(self.address)

    @property
    def start(self) -> Start | None:
        """The start of the run: a round or a file with weights; None draws weights from the seed."""
        return self.config.start_from if isinstance(self.config.start_from, Start) else None


def plan(config: TrainConfig, more: Sequence[Any] = (), opened: Opener = open_stored) -> Plan:
    """Configure a training and plan its run; see `plan_run`."""
    return plan_run(configure(config, more), more, opened)


def plan_run(config: TrainConfig, more: Sequence[Any] = (), opened: Opener = open_stored) -> Plan:
    """Plan a training that `configure` has configured: the run, and what the configuration means.

    `more` plugins take part. Raises `RoundweaveError` for mistakes in the configuration or its code,
    `ExperimentDiffers` if the run of its name is of another experiment, and `Skipped` if there is nothing to do.
    """
    forget_examples()  # files may have changed since this process trained before
    config, run = find(config, more)
    plan = plan_rounds(config, run, opened, more)
    if run is None:
        return plan
    check_same_experiment(run, plan.config, plan.decided_by)
    best = run.config.get("best")
    if config.best not in (None, best):
        raise UsageError(f"{run.name} has best = {best}, not {config.best}; leave best out, or name another run")
    config = plan.config.model_copy(update={"best": best})
    return replace(plan, config=config, checks=(*plan.checks, partial(_check_examples, run)))


def _check_examples(run: StoredRun, described: Any) -> None:
    check_same_examples(run, described.plan.config, described.description)


def plan_rounds(
    config: TrainConfig,
    run: StoredRun | None = None,
    opened: Opener = open_stored,
    beside: Sequence[Any] | None = None,
) -> Plan:
    """Plan the rounds of a configuration, of a new or a stored run, to train them or to compute them again.

    The start of a new run is found in a run that the function `opened` opens. The plugins that decide bits take
    part. A training also has the configuration's other plugins, and those given `beside` it. Raises
    `RoundweaveError` as `plan` does.
    """
    config = complete(config, run is None, opened)
    algorithm = config.algorithm.build()
    algorithm = config.recombined.replaced(algorithm) if config.recombined else algorithm
    begun = config.start_from.meaning if isinstance(config.start_from, Start) else NO_NAMES
    partitions = deal(config, config.dtype, begun)
    when = algorithm.when
    plan = Plan(config, run, algorithm, partitions, Keep.of(config.keep or when.usual_keep))
    if config.keep not in (None, when.usual_keep):
        plan = plan.fill("keep", keep=plan.keep)
    plan = _ask(plan, [plugin for plugin in active_plugins(config) if plugin.decides])
    config = plan.config
    every = config.evaluate_every or when.scored_every(plan.partitions.taking_part)
    defaults = {"evaluate_every": every, "keep": config.keep or when.usual_keep}
    plan = replace(plan, config=config.model_copy(update=defaults))
    if beside is not None:
        others = [plugin for plugin in active_plugins(plan.config) if not plugin.decides]
        plan = _ask(plan, [*others, *beside])
    _check(plan)
    return plan


def _ask(plan: Plan, plugins: Sequence[Any]) -> Plan:
    """Return the plan after the hooks of some plugins. Raises `UsageError` for forbidden changes."""
    for plugin in plugins:
        if any(plugin.is_like(each) for each in plan.plugins):
            raise UsageError(f"plugin {plugin.label()} is given twice with the same options; leave one out")
        if not plugin.overrides():
            hooks = "configure, plan, began, committed, ended"
            raise UsageError(f"plugin {plugin.label()} overrides no hook, so it does nothing; there are {hooks}")
        before, plan = plan, through(plan, [plugin], "plan")
        changed = [part for part in DECIDING if getattr(plan, part) != getattr(before, part)]
        if changed and not plugin.decides:
            raise UsageError(f"plugin {plugin.label()} changes the {changed[0]} of a run; give it decides = True")
        plan = replace(plan, plugins=(*plan.plugins, plugin))
    sampler, most = plan.sampler, plan.partitions.split.partitions
    size = getattr(sampler, "size", None)
    if sampler and not (Sampler in type(sampler).__mro__ and isinstance(size, int) and 1 <= size <= most):
        raise UsageError(f"{plan.owner('sampler')}: {sampler!r} is no rw.Sampler whose size is 1 to {most}")
    asked: Any = Asked(sampler.size, {}, sampler.by_size) if _draws_here(plan) and sampler else sampler
    return replace(plan, partitions=replace(plan.partitions, sampler=asked, placement=plan.placement))


def _draws_here(plan: Plan) -> bool:
    """Tell whether the sampler is the user's, which no other process asks."""
    return plan.sampler is not None and plan.sampler.draw_next is None


def _check(plan: Plan) -> None:
    """Raise `UsageError` for slots of a plan that exclude each other, and for a plugin that is missing here."""
    config, when, run = plan.config, plan.algorithm.when, plan.run
    plan.mapper.check_map(plan.algorithm.map)
    if not (plan.schedule or when.together):
        raise UsageError("this algorithm needs a parameter server, and no installed plugin has one")
    if plan.schedule and _draws_here(plan):
        option = plan.owner("sampler")
        raise UsageError(f"{option} draws for a round, and a parameter server has none; name another algorithm")
    if plan.keep.maps_again and (plan.placement.stays or config.mixed_hardware):
        stay = f"examples stay at their {plan.placement.kind}s"
        why = stay if plan.placement.stays else "machines may give other bits"
        raise UsageError(f"keep {plan.keep} maps rounds again in any process, and {why}; give states or every:k")
    if (quorum := config.quorum) > (count := plan.partitions.taking_part):
        raise UsageError(f"quorum {quorum} is more than the {count} partitions of a round")
    if (buffer := when.updates(count)) > count:
        more = f"a larger {plan.owner('sampler')}" if plan.sampler else "more partitions"
        raise UsageError(
            f"a buffer of {buffer} is never full: {count} partitions have one update each in it; give a "
            f"smaller buffer or {more}"
        )
    recorded: list[str] = run.attributes.get("decided_by", []) if run else []
    if run and (lacking := [place for place in recorded if place not in plan.decided_by]):
        raise UsageError(f"{run.name} needs the plugin {lacking[0]}, which is not installed; install its package")
