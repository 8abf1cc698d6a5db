"""Resolves a configuration: makes the objects that its names stand for, before any process is started.

All mistakes that can be found without other processes are reported here, in the same order for all callers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from pathlib import Path
from typing import Any

from roundweave.flows.config.experiment import PREPARED, Dealing
from roundweave.flows.config.gate import check_conditions, with_code
from roundweave.flows.config.recorded import check_changed, check_same_experiment, differences, with_drift
from roundweave.flows.config.scheduled import address_of_run, scheduled
from roundweave.flows.config.train import TrainConfig
from roundweave.storage.checkpoints.folders import CONFIG
from roundweave.storage.errors import DataError, UsageError, nearest
from roundweave.storage.places.base import full_address
from roundweave.storage.rounds.columns import LEAST_TOLD
from roundweave.storage.rounds.commits import ranking
from roundweave.storage.runs.names import RECORDED, run_name, stored_round
from roundweave.storage.runs.run import Opener, StoredRun, open_stored
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.algorithms.topology import OWN, Topology, find_topology
from roundweave.tasks.algorithms.when import Order
from roundweave.tasks.compute.compute import Fitting
from roundweave.tasks.data.description import CallEach, Description, check_numbered, combine, gather_here
from roundweave.tasks.data.meaning import NO_NAMES, Meaning, agree
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.scored import described_with
from roundweave.tasks.data.sources.table import Data, at_sites, find_source, keep_source
from roundweave.tasks.data.splits.deals import find_split
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.executors.base import EXECUTORS, Executor
from roundweave.tasks.networks.objective import LAYOUTS, ModelSpec, Objective
from roundweave.tasks.networks.pretrained import PREFIX as PRETRAINED
from roundweave.tasks.networks.pretrained import find_pretrained
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.networks.scores import LOSS_NAMES, SCORES
from roundweave.tasks.networks.sizes import MOST_BYTES, TooLarge, at_most
from roundweave.tasks.networks.start import Fork, Start, find_start
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.own_code.code import Code, find_code, is_reference
from roundweave.tasks.own_code.tables import unknown
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.scoring import gathering

KEPT = "updates:10"
"""The default of `keep` for runs with a parameter server."""

SCORED_PUSHES = 10
"""By default the server's network is scored after so many pushes for each partition that computes at one time."""


@dataclass(frozen=True)
class Resolved:
    """What a configuration stands for, decided once. `config` is complete, with the source of user's functions.

    `run` is what there is of the run, None if it is new, or if its rounds are of no other run, as in a replay.
    `order` is that in which updates arrive at a server, None if workers decide. If each partition is loaded only
    where it is mapped, `description` and `objective` are None, and the algorithm is not bound to an objective yet.
    """

    config: TrainConfig
    algorithm: Algorithm
    partitions: Partitions
    topology: Topology | None = None
    order: Order | None = None
    run: StoredRun | None = None
    description: Description | None = None
    objective: Objective | None = None

    @property
    def address(self) -> str:
        """Where the run lies, or will."""
        return self.run.address if self.run else address_of_run(self.config)

    @property
    def name(self) -> str:
        """The name of the run."""
        return run_name(self.address)


def resolve(config: TrainConfig, by_worker: bool = False, opened: Opener = open_stored) -> Resolved:
    """Resolve the configuration of a run to train: what it stands for, and which run it is.

    If `by_worker`, a network that is too large for this process is left for a worker to try, if there will be one.
    The run whose round it begins with is `opened` by a function.
    Raises `RoundweaveError` for mistakes in it, its code, its data or its network, and `ExperimentDiffers` if the
    run of its name is of another experiment.
    """
    config, run = scheduled(config)
    resolved = resolve_work(config, by_worker, run is None, opened)
    if run is not None:
        check_same_experiment(run, resolved.config, resolved.description)
        best = run.config.get("best")
        if config.best not in (None, best):
            raise UsageError(f"{run.name} goes by best = {best}, not {config.best}; leave it out, or name another")
        resolved = replace(resolved, config=resolved.config.model_copy(update={"best": best}))
    elif resolved.description:
        check_changed(resolved.config, resolved.description)
    return replace(resolved, run=run, order=_order_of(resolved.config, resolved.algorithm))


def resolve_work(
    config: TrainConfig, by_worker: bool = False, new: bool = True, opened: Opener = open_stored
) -> Resolved:
    """Resolve what decides a configuration's rounds, for no run in particular, as to replay or to plan.

    The weights that a `new` run begins with are found and tried. Raises `RoundweaveError` as `resolve` does.
    """
    new = new and config.address is None
    start = _found_start(config, new, opened)
    config = _complete(config.model_copy(update={"start_from": start or config.start_from}))
    algorithm = config.algorithm.build()
    algorithm = config.recombined.replaced(algorithm) if config.recombined else algorithm
    topology = None if config.topology is None else find_topology(config.topology, config.partitions)
    if topology and (OWN not in algorithm.map.carry or algorithm.when.asynchronous):
        raise UsageError("topology needs rounds of partitions that carry networks of their own; choose d_psgd")
    if topology and algorithm.apply != Sgd():
        raise UsageError("with a topology the state is the mean of all networks: leave apply out")
    replace(algorithm, map=config.compute.wrapped(algorithm.map))  # what does not go together is refused early
    config = with_server(config, algorithm)
    begun = config.start_from.meaning if isinstance(config.start_from, Start) else NO_NAMES
    partitions = replace(deal(config, config.dtype, begun), cohort=config.drawn, seed=config.seed)
    resolved = Resolved(config, algorithm, partitions, topology)
    if partitions.source.partitioned:
        return resolved
    apart = by_worker and EXECUTORS[config.executor].distributed
    with suppress(TooLarge), at_most(MOST_BYTES) if apart else nullcontext():
        return _described(resolved, gather_here, start, new)
    return resolved


def work_of(resolved: Resolved, executor: Executor, new: bool = False) -> tuple[Work, Description]:
    """The work of a run's rounds, the same on any machine, and the description of its examples.

    The executor describes the examples where they lie, and the columns of those of a `new` run. New, resumed and
    replayed runs all use this function.
    """
    if resolved.objective is None:
        resolved = _described(resolved, executor.gather, new=new)
    config, objective, description = resolved.config, resolved.objective, resolved.description
    assert objective is not None
    assert description is not None
    compute = config.compute.bound(objective, resolved.partitions)
    algorithm = replace(resolved.algorithm, map=compute.wrapped(resolved.algorithm.map))
    decided = (algorithm, resolved.partitions, config.seed, compute, config.quorum)
    before = config.recombined.before if config.recombined else 0
    return Work(objective, *decided, code=config.code, before=before, topology=resolved.topology), description


def _described(resolved: Resolved, gather: CallEach, start: Start | None = None, new: bool = False) -> Resolved:
    """Resolve what needs the examples; `gather` calls a function with numbers of partitions, where they lie.

    Those of a `new` run are compared with those of the run that it begins with.
    """
    config, algorithm, partitions = resolved.config, resolved.algorithm, resolved.partitions
    each = partitions.source.partitioned
    told = 1 if not config.sites else LEAST_TOLD if config.describe_sites else 0
    partitions, descriptions = partitions.described_by(gather, told if new else 0)
    failed = {number: found.unreadable for number, found in enumerate(descriptions) if found.unreadable}
    if failed and len(descriptions) - len(failed) < config.quorum:
        number, reason = next(iter(failed.items()))
        raise DataError(f"{partitions.called(number)}: {reason}; quorum needs {config.quorum} that can be read")
    padded = partitions.loading.collate is not None
    description = with_drift(config, combine(descriptions, partitions.called, padded=padded))
    begun = config.start_from
    if isinstance(begun, Start) and begun.meaning != NO_NAMES and not description.columns.refusals:
        agree({begun.reference: begun.meaning, "the data": description.meaning})
    digests = tuple(part.digest for part in descriptions)
    files = tuple(description.files.items())
    partitions = replace(partitions, digests=digests, shared=bool(description.shared), files=files)
    if each and config.cohort_by_size:
        partitions = replace(partitions, counts=tuple(gather(partitions.size, range(config.partitions))))
    sizes = tuple(part.examples for part in descriptions) if each else ()
    mapper, own_loss = config.compute.mapper(algorithm.map), may_own_loss(config)
    fitting = Fitting(algorithm, mapper, config.threads, own_loss, sizes, config.code)
    wanted = objective_for(config, description)
    ((objective, algorithm, layout),) = gather(partial(fitting, wanted, partitions, description), range(1))
    LAYOUTS[objective.model] = layout
    if not description.columns.refusals:  # else it is rejected before it trains, as it may not fit what follows
        if start is not None and new:
            start.check(objective)
        if new and description.held_out:
            check_stays(config, objective)
        if config.validation is not None:
            partitions, description = _with_validation(config, objective, partitions, description, gather)
        _check_stops(config, description, list(objective.judges))
    bound = {"algorithm": algorithm, "partitions": partitions, "description": description, "objective": objective}
    return replace(resolved, **bound)


def check_stays(config: TrainConfig, objective: Objective) -> None:
    """Raise `UsageError` for a score that needs all outputs at once of sites that are not asked to send them."""
    if config.sites and not config.describe_sites and (whole := gathering(objective)):
        raise UsageError(f"{whole[0]} needs held-out outputs and targets; give describe_sites to send them")


def _with_validation(
    config: TrainConfig, objective: Objective, partitions: Partitions, description: Description, gather: CallEach
) -> tuple[Partitions, Description]:
    """The partitions and their description with the validation data, on which the network is tried."""
    assert config.validation is not None
    if not description.held_out:
        raise UsageError("validation is scored beside examples that are held out; give held_out, or leave it out")
    validation = scored_alone(config, config.validation)
    if validation.source.partitioned:
        raise UsageError("validation is one data set for all partitions; give a function without arguments")
    called = ("the data", "validation").__getitem__
    validation, own, both = described_with(description, validation, called, gather)
    gather(partial(check_fit, objective, validation, both), range(1))
    # Each partition scores a part of them, also where their labels are numbered as in training.
    partitions = replace(partitions, validation=replace(validation, shared=True), validated=own.held_out)
    return partitions, replace(description, validation=own.digest, validated=own.held_out)


def _check_stops(config: TrainConfig, description: Description, names: list[str]) -> None:
    """Raise `UsageError` for what needs scores, if no examples are held out, or has none of these `names`."""
    needing = ("target_accuracy", "patience", "best")
    given = next((name for name in needing if getattr(config, name) is not None), None)
    if given and not description.held_out:
        raise UsageError(f"{given} needs scores, and no examples are held out; give held_out, or leave it out")
    kinds = ["worst", "spread"] if config.score_partitions else []
    kinds += ["validation"] if config.validation is not None else []
    every = [*names, *(f"{kind}_{name}" for kind in kinds for name in names)]
    check_conditions(config.accept or (), every, description.held_out)
    if config.best and (score := ranking(config.best)[0]) not in every:
        hint = nearest(score, every, f"there are {', '.join(every)}")
        raise UsageError(f"best = {config.best}: no score {score!r} is computed; {hint}")


def deal(config: Dealing, dtype: str = "float32", meaning: Meaning = NO_NAMES) -> Partitions:
    """The partitions of a configuration's examples, in the order that names have in `meaning`.

    Nothing is loaded yet. Raises `UsageError`, `CodeError`.
    """
    seed = config.seed if config.split_seed is None else config.split_seed
    split = Split(config.partitions, config.split, seed, config.resplit_every)
    source = find_source(config.data, config.target, split.deal.column, config.hash_data, config.data_options)
    sites = config.site_of_each
    source = at_sites(source, config.data, sites) if sites and not source.partitioned else source
    source = source.arranged(meaning) if meaning != NO_NAMES else source
    own, options = config.score_partitions or 0.0, config.partition_options or {}
    how: dict[str, Any] = {"loading": config.loading, "own_held_out": own, "options": options, "sites": sites}
    return Partitions(source, split, dtype, config.held_out, **how)


def scored_alone(training: TrainConfig, data: Data, target: str | None = None) -> Partitions:
    """Other data, all of whose examples are scored, prepared and with columns left out as in a training."""
    data, trained = keep_source(data), training.data
    alike = isinstance(data, str) and isinstance(trained, str) and data.split(":")[0] == trained.split(":")[0]
    target = target or (training.target if alike else None)
    source = find_source(data, target, find_split(training.split).column, training.hash_data)
    count = len(data) if isinstance(data, tuple) else training.partitions if source.partitioned else 1
    split = Split(count, "contiguous")
    return Partitions(source, split, training.dtype, held_out=1, loading=training.loading)


def _complete(config: TrainConfig) -> TrainConfig:
    """The configuration with the source of the user's functions, and schedules as long as this run."""
    own = {
        "data": keep_source(config.data),
        "validation": config.validation and keep_source(config.validation),
        **{name: getattr(config.loading, name) for name in PREPARED},
        **found_model(_model_given(config), config.model_options),
        "loss": config.loss and named_or_own("loss", config.loss, LOSS_NAMES),
        "scores": config.scores and tuple(named_or_own("score", score, SCORES) for score in config.scores),
        "accept": config.accept and with_code(config.accept),
        "algorithm": config.algorithm.recorded(config.rounds),
        "recombined": config.recombined and config.recombined.model_copy(update=config.recombined.recorded()),
    }
    return config.model_copy(update=own)


def _found_start(config: TrainConfig, new: bool, opened: Opener) -> Start | None:
    """The start of a `new` run; None for the default, and for another run's round if this run has its own."""
    start = config.start_from
    if start and config.algorithm.options.get("init") == "per-partition":
        raise UsageError(
            "init = per-partition gives each partition weights of its own; leave start_from out, or init"
        )
    if isinstance(start, Fork) and new:
        return start
    return find_start(start, config.root, opened) if isinstance(start, str) else None


def _model_given(config: TrainConfig) -> str | Code:
    """The model of a configuration; by default that of the folder of a network which it starts from.

    Raises `UsageError` for a folder that does not say which network it has.
    """
    start = config.start_from
    if "model" not in config.model_fields_set and isinstance(start, Start) and not stored_round(start.reference):
        folder = Path(start.reference)
        if folder.is_dir() and not (folder / CONFIG).exists():
            raise UsageError(f"{folder} has no {CONFIG}, which says what network it has; give --model")
        return f"{PRETRAINED}{folder}" if folder.is_dir() else config.model
    return config.model


def found_model(model: str | Code, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a configuration that say how its network is built: a name, or source, and its options.

    Those of ``transformers:FOLDER`` are all that its ``config.json`` says, so that no run depends on it. Raises
    `UsageError` for an unknown name, and `CheckpointError` for a folder that is not followed.
    """
    if isinstance(model, str) and model.startswith(PRETRAINED):
        code, options = find_pretrained(model, options or {})
        return {"model": code, "model_options": options}
    return {"model": named_or_own("model", model, (*MODELS,), f"{PRETRAINED}FOLDER")}


def named_or_own(what: str, value: str | Code, names: Iterable[str], *others: str) -> str | Code:
    """A built-in name, or the source of a user's function; raises `UsageError` for an unknown name."""
    if isinstance(value, Code) or value in names:
        return value
    if is_reference(value):
        return find_code(value)
    raise unknown(what, value, [*names, *others, "FILE.py:function"])


def objective_for(config: TrainConfig, description: Description) -> Objective:
    """The network and loss of a configuration for examples of this description.

    The default loss is cross entropy for labels, and the squared error otherwise and for the model `linear`; a
    network that takes labels has its own instead, see `may_own_loss`.
    """
    fitting = "cross_entropy" if description.labels and config.model != "linear" else "mse"
    loss = fitting if config.loss is None else config.loss
    outputs = description.classes if description.labels and loss != "mse" else prod(description.targets)
    if loss == "cross_entropy" and isinstance(config.model, str):
        check_numbered(outputs, description.distinct)
    options = json.dumps(config.model_options, sort_keys=True)
    seed = config.seed if config.init_seed is None else config.init_seed
    model = ModelSpec(config.model, description.inputs, outputs, config.dtype, seed, options)
    return Objective(model, loss, config.scores)


def may_own_loss(config: TrainConfig) -> bool:
    """Whether a configuration's network, if it takes labels, computes its loss itself."""
    return config.loss is None and isinstance(config.model, Code)


def with_server(config: TrainConfig, algorithm: Algorithm) -> TrainConfig:
    """Fill in the defaults that depend on whether the algorithm has a parameter server.

    Raises `UsageError` for fields that do not fit the algorithm.
    """
    when = algorithm.when
    if not when.asynchronous:
        if config.order or config.speeds:
            raise UsageError("order and speeds need an algorithm whose updates arrive one by one")
        return _filled(config, evaluate_every=1, keep="all")
    in_flight = config.drawn.size if config.drawn else config.partitions
    if when.buffer > in_flight:
        more = "a larger cohort" if config.drawn else "more partitions"
        raise UsageError(
            f"a buffer of {when.buffer} is never full: {in_flight} partitions have one update each in it; give a "
            f"smaller buffer or {more}"
        )
    if config.sites and config.drawn:
        raise UsageError("a server's cohort reads partitions anywhere: leave out sites, or cohort, cohort_by_size")
    if config.deadline:
        raise UsageError("a parameter server waits for nobody; leave deadline out")
    if config.resplit_every is not None:
        raise UsageError("resplit_every needs rounds in which all partitions begin together; leave it out")
    if config.drawn and when.fetch_every > when.push_every:
        raise UsageError(
            f"a partition of a cohort fetches each time that it is drawn, not every {when.fetch_every} "
            f"steps; give fetch_every {when.push_every}, or leave cohort out"
        )
    if config.stacked > 1:
        raise UsageError("stacked needs rounds in which all partitions begin together; leave it out")
    if config.quorum > 1:
        raise UsageError(f"quorum {config.quorum} needs rounds of all partitions; leave it out")
    if (config.order or config.speeds) and EXECUTORS[config.executor].distributed:
        raise UsageError("on a cluster updates arrive as they do; order and speeds need executor inline")
    _check_speeds(config)
    every = max(1, SCORED_PUSHES * in_flight // when.buffer)
    return _filled(config, evaluate_every=every, keep=KEPT)


def _filled(config: TrainConfig, **defaults: Any) -> TrainConfig:
    """The configuration with these defaults for fields that were not given."""
    return config.model_copy(update={name: getattr(config, name) or value for name, value in defaults.items()})


def _check_speeds(config: TrainConfig) -> None:
    if config.speeds is None:
        return
    if config.order and config.order.startswith(RECORDED):
        raise UsageError("speeds decide a seeded order, and this order is recorded; leave one of them out")
    if len(config.speeds) != config.partitions or not all(0 < speed < inf for speed in config.speeds):
        raise UsageError(f"speeds needs {config.partitions} numbers above 0, one for each partition")


def _order_of(config: TrainConfig, algorithm: Algorithm) -> Order | None:
    """The order in which updates arrive at a parameter server.

    None if the workers' speed decides, or the algorithm has no parameter server. Raises `UsageError` if the order
    is that of a recorded run of another experiment.
    """
    if EXECUTORS[config.executor].distributed or not algorithm.when.asynchronous:
        return None
    from roundweave.tasks.rounds.asynchronous.orders import Recorded, Seeded

    if config.order is None or not config.order.startswith(RECORDED):
        return Seeded(config.seed, config.speeds or ())
    run = open_stored(config.order.removeprefix(RECORDED), config.root)
    if differing := differences(run.config, config):
        raise UsageError(f"{run.name} is another experiment ({'; '.join(differing)}); its order does not fit")
    return Recorded(full_address(run.address))
