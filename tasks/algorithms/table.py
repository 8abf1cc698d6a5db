"""The algorithms by name: the three parts of each, their options, and how to build one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter

from roundweave.storage.errors import CodeError, UsageError, failing_as, located
from roundweave.storage.parsing import mistakes_as
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.algorithms.algebra import Algorithm, Apply, Map, Part, Reduce
from roundweave.tasks.algorithms.applies.optimizers import Adagrad, Adam, Drift, KeepExtras, Sgd, Yogi
from roundweave.tasks.algorithms.maps.federated import (
    Agnostic,
    Elastic,
    FairSteps,
    FedDyn,
    FedNova,
    FedProx,
    MimeLite,
    OwnNetwork,
    Scaffold,
)
from roundweave.tasks.algorithms.maps.gradient import Downpour, Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.maps.observing import WithGrams
from roundweave.tasks.algorithms.maps.optimizers import is_own_optimizer
from roundweave.tasks.algorithms.options import options_of, valid
from roundweave.tasks.algorithms.reduces.matched import Matched
from roundweave.tasks.algorithms.reduces.mean import Fair, Mean, Normalised, Worst
from roundweave.tasks.algorithms.reduces.regmean import RegMean
from roundweave.tasks.algorithms.reduces.table import REDUCES
from roundweave.tasks.algorithms.when import Asynchronous, Buffered, Fetching, Pushing, Synchronous, When
from roundweave.tasks.own_code.code import Code, find_code, is_reference
from roundweave.tasks.own_code.tables import Entry, Table, find, make, make_own

MAPS: Table = {
    "gradient": Entry("one gradient of a partition or of one batch", ".algorithms.maps.gradient:Gradient"),
    "local_steps": Entry("local training by any optimizer", ".algorithms.maps.local_steps:LocalSteps"),
    "fed_prox": Entry("local training with a proximal term", ".algorithms.maps.federated:FedProx"),
    "scaffold": Entry("local SGD with control variates", ".algorithms.maps.federated:Scaffold"),
    "fed_dyn": Entry("local training with a dynamic regularizer", ".algorithms.maps.federated:FedDyn"),
    "fed_nova": Entry("local SGD that reports its steps", ".algorithms.maps.federated:FedNova"),
    "mime_lite": Entry("local SGD with the server's momentum", ".algorithms.maps.federated:MimeLite"),
    "fair": Entry("local training that reports its initial loss", ".algorithms.maps.federated:FairSteps"),
    "agnostic": Entry("local training that reports its weight", ".algorithms.maps.federated:Agnostic"),
    "downpour": Entry("the sum of gradients of several steps", ".algorithms.maps.gradient:Downpour"),
    "own_network": Entry("local training of the partition's own network", ".algorithms.maps.federated:OwnNetwork"),
    "elastic": Entry("local training drawn towards the server", ".algorithms.maps.federated:Elastic"),
}

APPLIES: Table = {
    "sgd": Entry("gradient descent with momentum", ".algorithms.applies.optimizers:Sgd"),
    "adam": Entry("Adam, by running moments", ".algorithms.applies.optimizers:Adam"),
    "adagrad": Entry("Adagrad, by the sum of squares", ".algorithms.applies.optimizers:Adagrad"),
    "yogi": Entry("Adam with smaller changes of the second moment", ".algorithms.applies.optimizers:Yogi"),
}

TABLES: Mapping[str, tuple[Table, type[Part]]] = {
    "map": (MAPS, Map),
    "reduce": (REDUCES, Reduce),
    "apply": (APPLIES, Apply),
}
"""Where the parts of each kind are named, and what each of them inherits."""

Chosen = type[Part] | Part | Code | str
"""A part: a class, whose options are open; a finished part; or the user's own, by value or reference."""


@dataclass(frozen=True)
class Option:
    """One option of an algorithm: its annotated type, its default, and the (part, field) that it is for."""

    annotation: Any
    default: Any
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Preset:
    """An algorithm by the classes of its parts, and the `defaults` that differ from the parts' own.

    The keys of `defaults` are (part, field), such as ``("apply", "momentum")``.
    """

    map: Chosen
    reduce: Chosen
    apply: Chosen
    when: type[When] = Synchronous
    defaults: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    def with_parts(self, named: Mapping[str, str | Code | None]) -> Preset:
        """Return the preset with other parts, by kind. Each new part has its own defaults.

        Raises `UsageError`, `CodeError`.
        """
        chosen: dict[str, Any] = {
            kind: choose_part(kind, name) for kind, name in named.items() if name is not None
        }
        kept = {(kind, name): value for (kind, name), value in self.defaults.items() if kind not in chosen}
        return replace(self, **chosen, defaults=kept)

    @property
    def options(self) -> dict[str, Option]:
        """The options of its parts by name.

        Those of an apply begin with ``outer_`` if the map has an optimizer.
        """
        parts = {"map": self.map, "reduce": self.reduce, "apply": self.apply, "when": self.when}
        outer = not isinstance(self.map, type) or "lr" in part_options(self.map)
        options: dict[str, Option] = {}
        for kind, part in parts.items():
            for name, (annotation, default) in part_options(part).items():
                full = f"outer_{name}" if kind == "apply" and outer else name
                before = options[full].fields if full in options else ()
                value = self.defaults.get((kind, name), default)
                options[full] = Option(annotation, value, (*before, (kind, name)))
        return options

    def yielding(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that are given, and None, or 1 for `lr`, for defaults that yield to them."""
        either = self.map.either if isinstance(self.map, type) else ()
        yielding = dict.fromkeys(either) if any(given.get(name) is not None for name in either) else {}
        own = {"lr": 1.0} if is_own_optimizer(given.get("optimizer", "")) else {}
        return {**yielding, **own, **given}

    def build(self, given: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm with options. Raises `UsageError` for values that do not go together."""
        values = self.yielding(given)
        arguments: dict[str, dict[str, Any]] = {kind: {} for kind in (*TABLES, "when")}
        for name, declared in self.options.items():
            for kind, to in declared.fields:
                arguments[kind][to] = values.get(name, declared.default)
        made = {kind: _made(kind, getattr(self, kind), arguments[kind]) for kind in TABLES}
        return with_needs(Algorithm(**made, when=self.when(**arguments["when"])))


def part_options(part: Any) -> Mapping[str, tuple[Any, Any]]:
    """Return the (type, default) of the options of a part. A finished part, or the user's own, has none."""
    return options_of(part) if isinstance(part, type) else {}


def choose_part(kind: str, named: str | Code) -> Chosen:
    """Return the part with this name of a kind: its class, or the part itself for a full name such as ``krum:1``.

    The user's own part stays as it is named. Raises `UsageError`.
    """
    table = TABLES[kind][0]
    if is_own_part(kind, named):
        return named
    assert isinstance(named, str)
    if ":" in named:
        made: Part = make(kind, named, table)
        return made
    chosen: type = find(kind, named, table, "FILE.py:function")[0].load()
    return chosen if isinstance(chosen, type) else chosen()


def is_own_part(kind: str, named: str | Code) -> bool:
    """Tell whether a part of a kind is the user's own: a value, or a reference that is not in the table."""
    return not isinstance(named, str) or (named.partition(":")[0] not in TABLES[kind][0] and is_reference(named))


def make_part(kind: str, named: str | Code, given: Mapping[str, Any]) -> Any:
    """Return the part with this name of a kind, with options.

    Raises `UsageError` for options that it does not take.

    >>> make_part("apply", "sgd", {"lr": 0.5, "lr_schedule": "cosine:8"})
    Sgd(lr=0.5, lr_schedule='cosine:8', warmup=0, momentum=0.0, nesterov=False)
    """
    part = choose_part(kind, named)
    taken = part_options(part)
    name = named.reference if isinstance(named, Code) else named
    check_taken(f"{kind} {name}", given, taken)
    for keyword, value in given.items():
        valid(f"{kind} {name}: {keyword}", value, TypeAdapter(taken[keyword][0]), strict=isinstance(value, bool))
    return _made(kind, part, given)


def check_taken(what: str, given: Iterable[str], taken: Iterable[str]) -> None:
    """Raise `UsageError` for options that an algorithm or a part does not take."""
    if refused := sorted({*given} - {*taken}):
        raise UsageError(f"{what} takes no {', '.join(refused)}; it takes {', '.join(taken) or 'no options'}")


def _made(kind: str, part: Chosen, arguments: Mapping[str, Any]) -> Any:
    """Return the part itself: an instance of a class with arguments, or the result of the user's function."""
    if isinstance(part, type):
        return part(**arguments)
    if isinstance(part, Code | str):
        return make_own(kind, find_code(part), TABLES[kind][1])
    return part


def with_needs(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with what its parts need of one another.

    Reduced extras are kept for the next round's maps. Networks that begin apart are matched to one another. Maps
    observe what a reduce needs to solve layers.
    """
    map, reduce, apply = algorithm.map, algorithm.reduce, algorithm.apply
    if map.begins_apart and isinstance(reduce, Matched) and reduce.match_to is None:
        reduce = replace(reduce, match_to="many" if reduce.soft is None else "first")
    if isinstance(reduce, RegMean) and not isinstance(map, WithGrams):
        map = WithGrams(map, reduce.gram_examples)
    if lacking := tuple(slot for slot in map.extras if slot not in apply.keeps):
        apply = KeepExtras(apply, lacking, of_all=map.extras_of_all)
    return replace(algorithm, map=map, reduce=reduce, apply=apply)


AUTO = "auto"
"""The name of the algorithm that `roundweave plan` chooses by a race."""

ABOUT: Mapping[str, str] = {
    "sync_sgd": "synchronous SGD: one step by the mean gradient of all partitions (Chen et al. 2016)",
    "fed_avg": "local training, then the mean of the networks (McMahan et al. 2017, Algorithm 1)",
    "diloco": "many local AdamW steps, server steps with Nesterov momentum (Douillard et al. 2023, Algorithm 1)",
    "matched": "fed_avg with hidden units matched before the mean (Ainsworth et al. 2023, Algorithm 1)",
    "fed_avgm": "fed_avg with momentum on the server (Hsu et al. 2019)",
    "fed_adam": "fed_avg with Adam on the server (Reddi et al. 2021, Algorithm 2)",
    "fed_adagrad": "fed_avg with Adagrad on the server (Reddi et al. 2021, Algorithm 2)",
    "fed_yogi": "fed_avg with Yogi on the server (Reddi et al. 2021, Algorithm 2)",
    "fed_prox": "fed_avg with a proximal term in the local loss (Li et al. 2020, Algorithm 2)",
    "scaffold": "fed_avg with control variates (Karimireddy et al. 2020, Algorithm 1, option II)",
    "fed_dyn": "fed_avg with a dynamic regularizer (Acar et al. 2021, Algorithm 1)",
    "fed_nova": "fed_avg, normalised by the number of local steps (Wang et al. 2020)",
    "mime_lite": "local steps with the server's momentum (Karimireddy et al. 2021, MimeLite)",
    "q_fed_avg": "fed_avg with larger weights for partitions with larger losses (Li et al. 2020, Algorithm 2)",
    "afl": "agnostic training for the worst mixture of partitions (Mohri et al. 2019)",
    "async_sgd": "a parameter server applies each gradient on arrival (Zhang et al. 2016)",
    "downpour": "partitions push sums of gradients to a server with Adagrad (Dean et al. 2012, Algorithm 1)",
    "easgd": "elastic averaging: partitions and server attract each other (Zhang et al. 2015, Algorithm 1)",
    "fed_buff": "local training; the server applies means of buffered updates (Nguyen et al. 2022, Algorithm 1)",
    "d_psgd": "decentralised: each partition averages its network with its neighbours' (Lian et al. 2017)",
    AUTO: "the choice of `roundweave plan` by a race; a round counts as an epoch",
}
"""What a configuration may name, and what each is: the algorithms, and the name of the one that is chosen."""


def preset(map: Any, reduce: Any, apply: Any, when: Any = Synchronous, **defaults: Any) -> Preset:
    """Return a preset whose options have other defaults than those of its parts."""
    options = (made := Preset(map, reduce, apply, when)).options
    return replace(made, defaults={to: value for name, value in defaults.items() for to in options[name].fields})


NESTEROV = {"outer_lr": 0.7, "outer_momentum": 0.9, "outer_nesterov": True}

ALGORITHMS: Mapping[str, Preset] = {
    "sync_sgd": preset(Gradient, Mean, Sgd, lr=0.1),
    "fed_avg": preset(LocalSteps, Mean, Sgd),
    "diloco": preset(LocalSteps, Mean, Sgd, optimizer="AdamW", lr=1e-3, local_steps=50, **NESTEROV),
    "matched": preset(LocalSteps, Matched, Sgd),
    "fed_avgm": preset(LocalSteps, Mean, Sgd, outer_momentum=0.9),
    "fed_adam": preset(LocalSteps, Mean, Adam),
    "fed_adagrad": preset(LocalSteps, Mean, Adagrad, outer_lr=0.1),
    "fed_yogi": preset(LocalSteps, Mean, Yogi),
    "fed_prox": preset(FedProx, Mean, Sgd),
    "scaffold": preset(Scaffold, Mean(weighted=False), Sgd),
    "fed_dyn": preset(FedDyn, Mean(weighted=False), Drift()),
    "fed_nova": preset(FedNova, Normalised, Sgd),
    "mime_lite": preset(MimeLite, Mean, Sgd()),
    "q_fed_avg": preset(FairSteps, Fair, Sgd),
    "afl": preset(Agnostic, Worst, Sgd, local_steps=1),
    "d_psgd": preset(OwnNetwork, Mean(weighted=False), Sgd()),
    "async_sgd": preset(Gradient, Mean, Sgd, Fetching, lr=0.1, batch_size=32),
    "downpour": preset(Downpour, Mean, Adagrad, Pushing, lr=0.05, outer_lr=0.02, outer_tau=0.1),
    "easgd": preset(Elastic, Mean, Sgd, Asynchronous, local_steps=10),
    "fed_buff": preset(LocalSteps, Mean(weighted=False), Sgd, Buffered),
}


MostLocalSteps = Annotated[
    int | None, Field(ge=1, description="maximum number of local steps per round; none: those of an epoch")
]


@dataclass(frozen=True)
class Auto:
    """The options of the algorithm that a race chooses."""

    lr: option.LearningRate = 0.1
    momentum: option.Momentum = 0.0
    nesterov: option.Nesterov = False
    lr_schedule: option.LearningRateSchedule = "constant"
    batch_size: option.BatchSize = 32
    most_local_steps: MostLocalSteps = None


def build_algorithm(
    named: str | Code, options: Mapping[str, Any], parts: Mapping[str, str | Code | None] | None = None
) -> Algorithm:
    """Return a named algorithm with options, and with other parts by kind. Refuses unknown options by name."""
    if isinstance(named, Code):
        return _own(named, options, parts or {})
    if named == AUTO:
        raise UsageError(
            "auto is no algorithm of its own: `roundweave plan` and `roundweave train` choose one by a race; "
            "name the one that they chose"
        )
    preset = ALGORITHMS[named].with_parts(parts or {})
    check_taken(with_own_parts(named, parts or {}), options, preset.options)
    return preset.build(options)


def with_own_parts(named: str, parts: Mapping[str, str | Code | None]) -> str:
    """Return an algorithm as errors name it: with the parts that are the user's own, which have no options."""
    own = [kind for kind, part in parts.items() if part and is_own_part(kind, part)]
    return f"algorithm {named}{f' with a {own[0]} of your own, whose fields are no options,' if own else ''}"


def _own(code: Code, options: Mapping[str, Any], parts: Mapping[str, str | Code | None]) -> Algorithm:
    """Return the result of the user's function, with other parts by kind."""
    make, name = code.load(), code.reference
    signature = inspect.signature(make)
    check_taken(f"algorithm {name}", options, signature.parameters)
    advice = "give every option a default"
    with mistakes_as(lambda error: UsageError(f"algorithm {name}: {error}; {advice}"), TypeError):
        signature.bind(**options)
    with failing_as(lambda error: CodeError(f"algorithm {name} failed with {located(error)}")):
        hints = get_type_hints(make, include_extras=True)
        values = {
            name: option.valid(name, value, TypeAdapter(hints.get(name, Any))) for name, value in options.items()
        }
        algorithm = make(**values)
    if not isinstance(algorithm, Algorithm):
        raise UsageError(f"algorithm {name} must return an Algorithm, not {type(algorithm).__name__}")
    made = {kind: make_part(kind, named, {}) for kind, named in parts.items() if named is not None}
    return with_needs(replace(algorithm, **made)) if made else algorithm
