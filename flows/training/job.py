"""Turns a plan into a job: describes the examples, then locks and recovers the run's store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import Any

from roundweave.flows.config.experiment import Dealing
from roundweave.flows.config.recorded import check_same_examples, check_same_experiment, codes_of, other_examples
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.machines import common_fingerprints, machines
from roundweave.flows.planning.describing import Described, describe
from roundweave.flows.planning.plan import Plan
from roundweave.flows.recording import Needs, NewRun, create_run, new_run
from roundweave.flows.reporting.listening import begun, notice
from roundweave.storage.errors import ExperimentDiffers, PluginFailed, failing_as, located
from roundweave.storage.places.base import full_address
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.lease import fenced, hold_lease
from roundweave.storage.rounds.store import RoundStore, Syncing, synced
from roundweave.storage.runs.names import held_rounds, is_run
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.upkeep.keep import All
from roundweave.storage.upkeep.pruning import prune
from roundweave.storage.values.state import Update
from roundweave.storage.values.tensors import specs_bytes
from roundweave.tasks.compute.mapper import EXAMPLES
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.splits.split import Asked, Sampler
from roundweave.tasks.executors.base import EXECUTORS, Executor
from roundweave.tasks.networks.sizes import MOST_BYTES
from roundweave.tasks.networks.start import Fork, Start
from roundweave.tasks.numerics.fingerprints import check_fingerprint, check_sources, sources
from roundweave.tasks.rounds.job import Attempt, Job, Work, sizes_to_draw, window_size

COMPARED = 100
"""After this many rounds, a step of ranks that share a network is compared with a step of the whole network."""


AT_PLACES = 20
"""The fewest rounds of a window if examples stay at places: a scored state is already there for the next maps."""


@dataclass(frozen=True)
class Prepared:
    """A run that is ready for its next round.

    `done` is the number of the last committed round. `wanted` is the configured number of rounds in a window, or
    None. `syncing` knows which rounds would survive a power loss.
    """

    job: Job
    store: RoundStore
    done: int
    wanted: int | None
    syncing: Syncing
    sampler: Sampler | None = None

    def window(self, seconds: float | None) -> int:
        """Return the number of rounds to run at once if the last one took so many seconds; see `window_size`."""
        if schedule := self.job.work.schedule:
            return window_size(self.wanted, seconds, long=True, largest=schedule.largest_window)
        rounds = window_size(self.wanted, seconds, long=self.store.tensors.slow)
        return max(rounds, AT_PLACES) if not self.wanted and self.job.work.partitions.placement.stays else rounds

    def job_of(self, first: int, last: int) -> Job:
        """Return the job of these rounds. A sampler of the user's draws the partitions of each round here."""
        work, sampler = self.job.work, self.sampler
        partitions = work.partitions
        if sampler is None or not isinstance(partitions.sampler, Asked):
            return self.job
        before = [self.store.log.read(number) for number in range(first)] if sampler.sees else None
        asked = dict[int, tuple[int, ...]]()
        for round in range(work.before + first, work.before + last + 1):
            sizes = sizes_to_draw(partitions, partitions.split.number(round))
            asked[round] = _draw(sampler, work.seed, round, sizes, before)
        partitions = replace(partitions, sampler=replace(partitions.sampler, rounds=asked))
        return replace(self.job, work=replace(work, partitions=partitions))

    def let_go(self, newest: Commit) -> None:
        """Prune tensors that the policy does not keep.

        Call this method between windows: lost work of a window may need the states from its beginning. Tensors are
        pruned only after a later round is safe against a power loss.
        """
        self.syncing.written = newest
        if (keep := self.job.attempt.keep) != All():
            prune(self.store, keep, self.syncing.safe, held_rounds(self.store.address))

    def compare(self, first: int, newest: Commit) -> None:
        """Raise `RoundFailed` if ranks that share a network take another step than the whole network.

        The step begins from the newest state. The comparison is made if a multiple of 100 lies in the rounds from
        `first` to the newest, and at the end of the training.
        """
        work, attempt = self.job.work, self.job.attempt
        if self.job.ranks == 1:
            return
        last = newest.round == attempt.rounds or attempt.stop_reason(newest)
        if last or newest.round // COMPARED > (first - 1) // COMPARED:
            state, partition = self.store.tensors.read_state(newest), newest.round % self.job.plan.partitions
            work.mapper.compare(work.objective, work.partitions.sample(partition, EXAMPLES).inputs, state)


def _draw(sampler: Sampler, seed: int, round: int, sizes: Sequence[int], before: Any) -> tuple[int, ...]:
    """Draw the partitions of a round by the user's sampler, ascending. Raises `PluginFailed` for invalid draws."""
    who = f"sampler {type(sampler).__name__}"
    with failing_as(lambda error: PluginFailed(f"{who} failed with {located(error)}")):
        drawn = sampler.draw(seed, round, sizes, None, before)
        asked = tuple(sorted(index(each) for each in (() if drawn is None else drawn)))
    if not 1 <= len({*asked} & {*range(len(sizes))}) == len(asked) <= sampler.size:
        must = f"up to {sampler.size} numbers from 0 to {len(sizes) - 1}, each once"
        raise PluginFailed(f"{who} drew {[*asked] or drawn} for round {round}; it must draw {must}")
    return asked


@contextmanager
def prepare(
    plan: Plan, executor: Executor, described: Described | None = None, *, must_fit: bool = True
) -> Iterator[Prepared]:
    """Create or open a planned run, and lock it for writing while the context is open.

    The executor describes the examples, unless they are `described` already. An error inside the context is
    recorded in the run. Raises `UsageError` if a new run `must_fit` and the disk cannot hold all its rounds, or
    the memory of a machine cannot hold its network.
    """
    described = (described or describe(plan, executor.gather)).on(executor.each)
    plan, work, description = described.plan, described.work, described.description
    config = plan.config
    here = sources(codes := codes_of(config))
    present = machines(executor, work, codes)
    for machine in present:
        check_sources(here, machine.sources, machine.where)
    common, own = common_fingerprints(present, config.mixed_hardware)
    work = replace(work, fingerprint=common, fingerprints=own, sources=here, all_code=codes)
    if work.mapper.ranks > 1 and not EXECUTORS[config.executor].separate_ranks:
        shared = f"the {work.mapper.ranks} ranks of a network share one process"
        notice(f"{shared}; with executor ranks each rank has its own")
    apart = not work.partitions.held_out_together and bool(description.held_out)
    if apart and plan.sampler and not work.rotating:
        notice(
            "each round is scored on held-out examples of its own cohort, so two rounds have different examples"
        )
    if plan.new and must_fit:
        needs = Needs.of(work)
        needs.check_disk(place_of(plan.address), plan.keep, config.rounds, bool(plan.stops))
        needs.check_memory(executor)
    _create_or_check(replace(described, work=work), executor, len(present) - 1)
    begun.append(plan.name)
    token, place = secrets.token_hex(4), place_of(plan.address, config.fsync)
    with hold_lease(place, token, config.rounds) as lease:
        new = plan.new and lease.epoch == 1  # no other process has written it since
        store = RoundStore(fenced(place, lease.epoch), rounds=lease.rounds)
        done = 0 if new else _recovered(store, work)
        fields = {"rounds", "evaluate_every", "fsync"}
        given = config.model_dump(include=fields) | {
            "best": config.best or "loss",
            "keep": plan.keep,
            "stops": plan.stops,
            "code": tuple(plugin.code for plugin in config.plugins),
            "may_go_ahead": not any(plugin.may_end for plugin in plan.plugins),
        }
        attempt = Attempt(full_address(store.address), token, lease.epoch, **given)
        job = Job(work, attempt, shard=store.schema.shard, patience=plan.patience)
        with synced(store, store.log.read(done)) as syncing:
            run = Prepared(job, store, done, config.window, syncing, plan.sampler)
            if done:
                run.let_go(syncing.written)
            try:
                yield run
            finally:
                executor.end()
        run.let_go(syncing.written)


def _create_or_check(described: Described, executor: Executor, processes: int) -> None:
    """Create the run if it is new; else raise an error if the experiment or the numerics differ."""
    plan, work, run = described.plan, described.work, described.plan.run
    if run is None:
        executor.gather(work.partitions.check_again, range(1))
        try:
            _create(described, executor, processes)
            return
        except ExperimentDiffers:
            # Another process, or an earlier attempt of this flow, may have created the run since: then open it.
            if not is_run(plan.address):
                raise
            run = StoredRun(plan.address)
            check_same_experiment(run, plan.config, plan.decided_by)
            check_same_examples(run, plan.config, described.description)
    then = {"": run.attributes["fingerprint"], **run.attributes.get("fingerprints", {})}
    now = {"": work.fingerprint, **work.fingerprints}
    for place in {**then, **now}:
        recorded, present = (each.get(place) or each[""] for each in (then, now))
        if recorded and present:
            check_fingerprint(recorded, present, place or "this machine")


def _create(described: Described, executor: Executor, processes: int) -> None:
    """Create a run that begins with initial weights, a checkpoint, or a round of another run.

    `processes` is the number of processes that will map its partitions. One of them makes the state of a large
    network, unless examples stay at places.

    The new run takes the state and the outer optimizer's memory of another run, and the carry of the partitions if
    they hold the same examples. A run that is rejected for its examples has initial weights, because its network
    may differ from its parent's.
    """
    work, description = described.work, described.description
    plan = described.plan
    config, start, where = plan.config, plan.start, plan.address
    if not isinstance(start, Fork) or description.columns.refusals:
        begins = None if description.columns.refusals else start
        create = partial(_create_anew, new_run(described, processes), begins, full_address(where))
        layout = work.objective.layout
        # A storing process sees no examples that stay at places, and the state is scored on these.
        large = not work.partitions.placement.stays and specs_bytes((*layout.params, *layout.frozen)) > MOST_BYTES
        if large:
            executor.gather(create, range(1), stored=True)
        if not large or not is_run(where):  # a worker without the shared disk may have used its own
            create(gather=executor.gather)
        return
    initial, taken = start.state(work.objective), _carried(start, config, work, description)
    if not taken:
        # The server may keep the carry of all partitions, such as a control variate: both are dropped together.
        names = initial.memory.keys() - set(work.algorithm.map.carry)
        initial = replace(initial, memory={name: initial.memory[name] for name in names})
    if new := sorted(work.algorithm.apply.init(initial.params).keys() - initial.memory.keys()):
        notice(f"{described.plan.name} begins with new {', '.join(new)}: {start.reference} has none that fit")
    create_run(where, new_run(described, processes, parent=start.parent), initial, taken, executor.gather)


def _create_anew(new: NewRun, start: Start | None, where: str, _: int = 0, **how: Any) -> None:
    """Create a run that begins with initial weights or a checkpoint, in any process.

    `how` goes to `create_run`.
    """
    objective = new.work.objective
    create_run(where, new, start.state(objective) if start else objective.initial(), **how)


def _carried(start: Fork, config: TrainConfig, work: Work, description: Description) -> dict[int, Update]:
    """Return the carry of another run's partitions; empty if examples, split or slots of the carry differ."""
    run = start.run()
    same = not other_examples(run.attributes, description.digest, description.files)
    dealing = config.model_dump(mode="json", include=Dealing.model_fields.keys() - {"data", "target", "hash_data"})
    recorded = {n: run.config.get(n, Dealing.model_fields[n].default) for n in dealing}  # older runs lack some
    if not (same and work.algorithm.map.carry and recorded == dealing):
        return {}
    from roundweave.storage.runs.measures import carried  # few runs need this import

    found = carried(run, start.parent["round"])
    if all(update.carry.keys() == {*work.algorithm.map.carry} for update in found.values()):
        return found
    notice(f"partitions begin with new local state: that of {start.reference} does not fit")
    return {}


def _recovered(store: RoundStore, work: Work) -> int:
    """Recover the store for the holder of its lease, and return the number of its last whole round.

    The assignments of the splits of all earlier rounds are written again.
    """
    from roundweave.storage.upkeep.recovery import recover  # a new run has nothing to recover

    done, _ = recover(store)
    if done and not work.partitions.source.partitioned:
        for number in range(work.split(1), work.split(done) + 1):
            store.splits.write(number, work.partitions.assignment)
    return done
