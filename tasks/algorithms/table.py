"""The table of named algorithms, and what builds one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter

from roundweave.storage.errors import CodeError, UsageError, failing_as, located
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.memory import Drift
from roundweave.tasks.algorithms.applies.optimizers import Adagrad, Adam, Sgd, Yogi
from roundweave.tasks.algorithms.maps.corrected import Elastic, FedProx, OwnNetwork, Scaffold
from roundweave.tasks.algorithms.maps.federated import Agnostic, FairSteps, FedDyn, FedNova, MimeLite
from roundweave.tasks.algorithms.maps.gradient import Downpour, Gradient
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.preset import Preset, check_taken, make_part, with_needs
from roundweave.tasks.algorithms.reduces.matched import Matched
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.algorithms.reduces.reweighted import Fair, Normalised, Worst
from roundweave.tasks.algorithms.when import Asynchronous, Buffered, Fetching, Pushing, Synchronous
from roundweave.tasks.own_code.code import Code

AUTO = "auto"
"""The name that stands for the algorithm which `roundweave plan` chooses by a race."""

ABOUT: Mapping[str, str] = {
    "sync_sgd": "one step of one machine by the mean gradient of all partitions (Chen et al. 2016)",
    "fed_avg": "local training, then the mean of the networks (McMahan et al. 2017, Algorithm 1)",
    "diloco": "many local steps of AdamW, outer ones with Nesterov momentum (Douillard et al. 2023, Algorithm 1)",
    "matched": "fed_avg, hidden units matched before the mean (Ainsworth et al. 2023, Algorithm 1)",
    "fed_avgm": "fed_avg with momentum on the server (Hsu et al. 2019)",
    "fed_adam": "fed_avg with Adam on the server (Reddi et al. 2021, Algorithm 2)",
    "fed_adagrad": "fed_avg with Adagrad on the server (Reddi et al. 2021, Algorithm 2)",
    "fed_yogi": "fed_avg with Yogi on the server (Reddi et al. 2021, Algorithm 2)",
    "fed_prox": "fed_avg whose partitions are held near the start (Li et al. 2020, Algorithm 2)",
    "scaffold": "fed_avg with control variates (Karimireddy et al. 2020, Algorithm 1, option II)",
    "fed_dyn": "fed_avg, regularized by what partitions and server keep (Acar et al. 2021, Algorithm 1)",
    "fed_nova": "fed_avg in which more local steps do not count more (Wang et al. 2020)",
    "mime_lite": "local steps with the server's momentum (Karimireddy et al. 2021, MimeLite)",
    "q_fed_avg": "fed_avg in which partitions with larger losses count more (Li et al. 2020, Algorithm 2)",
    "afl": "training for the worst mixture of the partitions (Mohri et al. 2019)",
    "async_sgd": "each gradient is applied by a parameter server as it arrives (Zhang et al. 2016)",
    "downpour": "sums of gradients are pushed to a server with Adagrad (Dean et al. 2012, Algorithm 1)",
    "easgd": "elastic averaging: partitions and server draw each other (Zhang et al. 2015, Algorithm 1)",
    "fed_buff": "local training, and a server round for each buffer of updates (Nguyen et al. 2022, Algorithm 1)",
    "d_psgd": "each partition has a network, averaged with its neighbours' (Lian et al. 2017; `topology`)",
    AUTO: "what `roundweave plan` chooses by a race; a round stands for an epoch",
}
"""What a configuration may name, and what each is: the algorithms, and the name of the one that is chosen."""


def preset(map: Any, reduce: Any, apply: Any, when: Any = Synchronous, **defaults: Any) -> Preset:
    """A preset whose options have other defaults than those of its parts."""
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
    int | None, Field(ge=1, description="no more local steps a round than these; none: those of an epoch")
]


@dataclass(frozen=True)
class Auto:
    """The options of the name that stands for the algorithm which a race chooses."""

    lr: option.LearningRate = 0.1
    momentum: option.Momentum = 0.0
    nesterov: option.Nesterov = False
    lr_schedule: option.LearningRateSchedule = "constant"
    batch_size: option.BatchSize = 32
    most_local_steps: MostLocalSteps = None


def build_algorithm(
    named: str | Code, options: Mapping[str, Any], parts: Mapping[str, str | Code | None] | None = None
) -> Algorithm:
    """A named algorithm with options, and with other parts by kind; refuses by name an option that it has not."""
    if isinstance(named, Code):
        return _own(named, options, parts or {})
    if named == AUTO:
        raise UsageError(
            "auto is no algorithm of its own: `roundweave plan` and `roundweave train` choose one by a race; "
            "name the one that they chose"
        )
    preset = ALGORITHMS[named].with_parts(parts or {})
    check_taken(f"algorithm {named}", options, preset.options)
    return preset.build(options)


def _own(code: Code, options: Mapping[str, Any], parts: Mapping[str, str | Code | None]) -> Algorithm:
    """What the user's function returns, with other parts by kind."""
    make, name = code.load(), code.reference
    signature = inspect.signature(make)
    check_taken(f"algorithm {name}", options, signature.parameters)
    try:
        signature.bind(**options)
    except TypeError as error:
        raise UsageError(f"algorithm {name}: {error}; give every option a default") from error
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
