"""The plan of a training: what its configuration stands for, decided once, before any process is started.

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
"""What of a plan decides bits, so that only a plugin that decides changes them."""

Check = Callable[[Any], None]
"""Raises an error for what is `Described` and may not be trained."""


Stop = Callable[[Commit], str | None]
"""Says why training ends after a commit, from its round, score, best and since_best alone; None if it goes on."""


@dataclass(frozen=True)
class Plan:
    """What a configuration stands for. `config` is complete, with the source of the user's functions.

    `run` is what there is of the run whose rounds are trained, or computed again; None for a new run. `keep` says
    what stays of rounds. `schedule` says who begins when, None if a round's partitions begin together. `sampler`
    draws who takes part in a round, None for all, and `patience` says how long a round waits for the rest, None:
    for ever. `placement` says where the examples of each partition stay, and `mapper` computes their maps.
    `mixing` averages partitions' own networks before a round, None for none; `scorers` score each round;
    `plugins` are those that take part. The examples are not described yet; once they are, `checks` raise errors
    for those that may not be trained on. Whoever commits a round asks each of `stops` whether it is the last. The
    options that `needs_scores` names are refused where no examples are held out. `filled` has the option by which
    each slot was filled.

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
        """The plan with slots filled, by whoever owns an option.

        Raises `UsageError` for a slot that another option has filled; the line names both.
        """
        self._check_names(slots)
        for slot in slots:
            if slot in self.filled:
                raise UsageError(f"{option} and {self.filled[slot]} both decide the {slot}; leave one of them out")
        return replace(self, **slots, filled={**self.filled, **dict.fromkeys(slots, option)})

    def owner(self, slot: str) -> str:
        """The option that filled a slot; the slot's own name where a plugin replaced what is in it."""
        return self.filled.get(slot, slot)

    def add(self, **entries: Any) -> Plan:
        """The plan with one more entry in each of these lists, such as ``stops``."""
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
        """The plan with something around parts of its algorithm; see `Wrapping` for a map around a map."""
        given = {"map": map, "reduce": reduce, "apply": apply}
        parts: Any = {name: wrapper(getattr(self.algorithm, name)) for name, wrapper in given.items() if wrapper}
        return replace(self, algorithm=replace(self.algorithm, **parts))

    @property
    def new(self) -> bool:
        """Whether the run is a new one."""
        return self.run is None

    @property
    def address(self) -> str:
        """Where the run lies, or will."""
        return self.run.address if self.run else address_of_run(self.config)

    @property
    def awaits(self) -> list[str]:
        """The sections without which the run is not complete, though its rounds are done."""
        return [section for plugin in self.plugins for section in plugin.awaits()]

    @property
    def decided_by(self) -> dict[str, str]:
        """The installed packages' plugins that decide bits, whose code the run does not keep, and the packages."""
        deciding = {type(plugin) for plugin in self.plugins if plugin.decides}
        return {kind.place(): package for kind, package in packages().items() if kind in deciding}

    @property
    def name(self) -> str:
        """The name of the run."""
        return run_name(self.address)

    @property
    def start(self) -> Start | None:
        """The weights that the run begins with; None for those of the seed."""
        return self.config.start_from if isinstance(self.config.start_from, Start) else None


def plan(config: TrainConfig, more: Sequence[Any] = (), opened: Opener = open_stored) -> Plan:
    """Configure a training and plan its run; see `plan_run`."""
    return plan_run(configure(config, more), more, opened)


def plan_run(config: TrainConfig, more: Sequence[Any] = (), opened: Opener = open_stored) -> Plan:
    """Plan a training that `configure` has configured: which run it is, and what its configuration stands for.

    `more` plugins take part. Raises `RoundweaveError` for mistakes in the configuration or its code,
    `ExperimentDiffers` if the run of its name is of another experiment, and `Skipped` if there is nothing to do.
    """
    forget_examples()  # this process may have trained before on a file that was written anew
    config, run = find(config, more)
    plan = plan_rounds(config, run, opened, more)
    if run is None:
        return plan
    check_same_experiment(run, plan.config, plan.decided_by)
    best = run.config.get("best")
    if config.best not in (None, best):
        raise UsageError(f"{run.name} goes by best = {best}, not {config.best}; leave it out, or name another")
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
    """Plan the rounds of a configuration: of a new run, or of a stored one, to train or to compute them again.

    The weights that a new run begins with are found, in a run that is `opened` by a function. The plugins that
    decide bits take part; for a training the configuration's others do, too, and those given `beside` it. Raises
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
    """The plan with what each of some plugins adds; raises `UsageError` for what a plugin may not change."""
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
    """Whether the sampler is the user's, which no other process asks."""
    return plan.sampler is not None and plan.sampler.draw_next is None


def _check(plan: Plan) -> None:
    """Raise `UsageError` for what a plan's slots exclude in each other, and for a plugin that is not here."""
    config, when, run = plan.config, plan.algorithm.when, plan.run
    plan.mapper.check_map(plan.algorithm.map)
    if not (plan.schedule or when.together):
        raise UsageError("updates of this algorithm arrive one by one, and no plugin here schedules that")
    if plan.schedule and _draws_here(plan):
        option = plan.owner("sampler")
        raise UsageError(f"{option} draws rounds, and a parameter server has none; name another algorithm")
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
        raise UsageError(f"{run.name} needs the plugin {lacking[0]}, which is not here; install its package")
