"""Draws configurations: algorithms, networks, targets, batches, schedules, cohorts and reduces."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundweave.tasks.algorithms.table import ALGORITHMS
from tests.comparison import given as own
from tests.comparison import judged
from tests.comparison.given import CLASSES, FEATURES, OUTPUTS, SIDE, TIME, TOKENS

SEED = 44
"""Of all that is drawn here."""


@dataclass(frozen=True)
class Kind:
    """A network: the kinds of inputs and targets it takes, its class in `given`, and the options it may have.

    `built_in` is the name under which the project has it, whose own sizes are `shape`.
    """

    inputs: str
    targets: Sequence[str]
    plain: type
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    built_in: str | None = None
    shape: Mapping[str, int] = field(default_factory=dict)


VECTORS = ("labels", "soft", "number", "numbers")
DROPOUT = {"dropout": (0.0, 0.4)}

NETWORKS = {
    "linear": Kind("features", VECTORS, own.Linear, {}, "linear", {"features": FEATURES}),
    "mlp": Kind("features", VECTORS, own.Mlp, {"hidden": (5,), **DROPOUT}, "mlp", {"features": FEATURES}),
    "bytes": Kind("bytes", ("labels",), own.Mlp, {"hidden": (6,)}, "mlp", {"features": SIDE * SIDE}),
    "cnn": Kind("pictures", ("labels", "soft", "numbers"), own.Cnn, {"channels": (2,)}, "cnn"),
    "gpt": Kind("tokens", ("places",), own.Gpt, {"width": (4,), "heads": (1, 2), "depth": (1, 2)}, "gpt"),
    "mixed": Kind("features", VECTORS, own.Mixed, DROPOUT),
    "frozen": Kind("features", VECTORS, own.Frozen),
    "buffered": Kind("features", VECTORS, own.Buffered),
    "tied": Kind("tokens", ("places",), own.Tied),
    "ragged": Kind("ragged", ("ragged",), own.Tied),
    "recurrent": Kind("ragged", ("ragged",), own.Recurrent),
    "bag": Kind("tokens", ("labels", "numbers"), own.Bag),
    "pair": Kind("named", VECTORS, own.Pair),
    "segmenting": Kind("pictures", ("maps",), own.Segmenting, DROPOUT),
}

CROSSED = {
    "double": Kind("features", ("labels",), own.Double, {"named": (True, False)}),
    "drawing": Kind("features", VECTORS, own.Drawing),
    "labelled": Kind(
        "tokens", ("places",), judged.Labelled, {"shift": (False, True), "classes": (TOKENS,), "tokens": (TOKENS,)}
    ),
}
"""Networks that are crossed with what `cross` draws."""

WIDTHS = {"labels": CLASSES, "soft": CLASSES, "number": 1, "numbers": OUTPUTS}
"""How many outputs a network has for each kind of targets; those not here have a head of their own."""

LOSSES: dict[str, Sequence[Any]] = {
    "labels": (None, "cross_entropy", own.each, own.weighted),
    "soft": ("cross_entropy",),
    **dict.fromkeys(("number", "numbers"), ("mse", own.huber)),
    **dict.fromkeys(("places", "maps", "ragged"), (None, "cross_entropy")),
}

SCORES: dict[str, Sequence[Any]] = {
    "labels": (None, ("accuracy", "top5"), (own.sure, "accuracy"), (own.deviation,)),
    "soft": (None, (own.sure,)),
    "number": (None, ("mae",), (own.deviation,)),
    "numbers": (None, ("mae",), (own.deviation, "mae")),
    **dict.fromkeys(("places", "maps", "ragged"), (None, ("token_accuracy",))),
}

SCHEDULES = ("constant", "cosine", "cosine:3", "linear", "linear:6", "step:1:0.5", "step:2:0.3")

OPTIONS: dict[str, Sequence[Any]] = {
    "lr": (0.02, 0.1, 0.2),
    "lr_schedule": SCHEDULES,
    "lr_schedule_by": ("round", "step"),
    "warmup": (1, 2, 0.5),
    "batch_size": (None, 3, 5, 8, 50),
    "accumulate": (1, 2, 3),
    "momentum": (0.5, 0.9),
    "clip_norm": (0.05, 1.0),
    "init": ("shared", "shared", "per-partition"),
    "outer_lr": (0.3, 0.7),
    "outer_lr_schedule": SCHEDULES,
    "outer_warmup": (1, 2),
    "outer_momentum": (0.5, 0.9),
    "outer_nesterov": (False, True),
    "outer_beta1": (0.0, 0.5, 0.9),
    "outer_beta2": (0.9, 0.99),
    "outer_tau": (0.01, 0.1),
    "beta1": (0.0, 0.9),
    "beta2": (0.9,),
    "tau": (0.1,),
    "mu": (0.0, 0.1, 1.0),
    "alpha": (0.05, 0.5),
    "beta": (0.0, 0.5, 0.9),
    "q": (0.0, 0.5, 1.0, 2.0),
    "ascent": (0.0, 0.1, 1.0),
    "elasticity": (0.1, 0.3),
    "max_staleness": (0, 1, 2),
    "stale": ("drop", "scale"),
    "buffer": (1, 2, 3),
    "push_every": (1, 2),
    "fetch_every": (1, 2, 4),
    "match_to": ("start", "first"),
    "average": ("mean", "median"),
}
"""What options may be; those that an algorithm has are given in half of the draws."""

EPS = {"eps": 1e-3}
"""So that the rounding of a gradient that is 0, as that of a bias before BatchNorm, is no step of full length."""

DECAY = {"weight_decay": 0.1}
OPTIMIZERS: Sequence[dict[str, Any]] = (
    {"optimizer": "AdamW", "optimizer_options": EPS},
    {"optimizer": "AdamW", "optimizer_options": {**EPS, **DECAY, "betas": [0.8, 0.9]}},
    {"optimizer": "AdamW", "optimizer_options": {**EPS, **DECAY}, "no_decay_on": ["biases", "norms"]},
    {"optimizer": "Adam", "optimizer_options": {**EPS, "amsgrad": True}},
    {"optimizer": "RMSprop", "optimizer_options": EPS, "momentum": 0.9},
    {"optimizer": "Adagrad", "optimizer_options": EPS},
    {"optimizer": "SGD", "optimizer_options": DECAY},
    {"optimizer": "SGD", "optimizer_options": DECAY, "momentum": 0.9, "no_decay_on": ["biases"]},
    {"optimizer": "SGD", "momentum": 0.9, "nesterov": True},
)

WHOLE = (own.weighted, own.weighted_both, own.contrast, own.by_size)
"""Losses of which that of a batch is no mean of its pieces'."""

COMPRESSORS = ("bf16", "int8", "sign", "top_k:0.1", "top_k:0.5", "random_k:0.3", "powersgd:1", "powersgd:2")
KEEPS = ("all", "states", "updates:2", "every:2", "last:1", "recompute:2", "recompute:3")
BEGINS = (None, "round", "file", "fork", "fork", "fork anew")
"""What a run begins with: a stored round or a file of its tensors, or a fork, or one with another split."""

CARRIED: Sequence[dict[str, Any]] = (
    {"optimizer": "SGD", "momentum": 0.9, "optimizer_options": {"dampening": 0.5}},
    {"optimizer": own.grouped},
)
"""More that is carried, where it is crossed; in place of `OPTIMIZER`."""

OPTIMIZER = {"optimizer_options", "no_decay_on", "momentum", "nesterov", "lr"}

REDUCES = ["plain_mean", "clipped_mean:0.1", "median", "trimmed_mean:1", "krum:1", "krum:1:2", "bulyan:1"]
REDUCES += ["geometric_median"]

OWN_MEAN = ("fed_nova", "q_fed_avg", "afl", "matched", "d_psgd", "async_sgd", "downpour", "easgd", "fed_buff")
"""Algorithms that keep their own reduce here."""

ASYNCHRONOUS = ("async_sgd", "downpour", "easgd", "fed_buff")


def draw(number: int, attempt: int = 0, crossed: bool = False) -> dict[str, Any]:
    """The configuration of a number, whose algorithms take turns; `attempt` counts those that were refused.

    It has the fields of a `TrainConfig`, but for data and model, which follow from ``network``, its ``options``,
    ``targets``, ``examples`` and ``held`` (how examples are held out). If `crossed`, it has what `cross` draws.
    """
    names = sorted(ALGORITHMS) + ["fed_per"] * crossed
    at, name = random.Random(f"{SEED} {number} {attempt}" + " crossed" * crossed), names[number % len(names)]
    networks = {"matched": ["mlp"], "fed_per": ["mlp", "mixed", "pair", "bag"]}.get(name, sorted(NETWORKS))
    if crossed and len(networks) > 4 and at.random() < 0.3:
        networks = sorted(CROSSED)
    network = "mlp" if name == "matched" else at.choice(networks)
    kind = (NETWORKS | CROSSED)[network]
    drawn: dict[str, Any] = {"network": network, "targets": at.choice(list(kind.targets))}
    drawn["options"] = {key: at.choice(list(values)) for key, values in kind.options.items()}
    drawn["examples"], drawn["seed"] = at.randint(40, 80), at.randrange(1000)
    drawn["held"] = at.choice(["drawn", "drawn", "given", "apart"])
    drawn["loss"], drawn["scores"] = (at.choice(list(of[drawn["targets"]])) for of in (LOSSES, SCORES))
    if network == "linear":  # its own default for labels is another loss, of one output
        drawn["loss"] = drawn["loss"] or "cross_entropy"
    drawn["algorithm"] = _algorithm(at, name)
    if name == "matched":
        drawn["options"]["dropout"] = 0.0
    if name == "fed_per":
        drawn["algorithm"]["layer"] = "fc2" if network == "mlp" else "head"
    if crossed:
        _judge(at, drawn)
        if "optimizer_state" in (given := drawn["algorithm"]) and name != "fed_per" and at.random() < 0.4:
            rest = {key: value for key, value in given.items() if key not in OPTIMIZER}
            drawn["algorithm"] = rest | at.choice(CARRIED) | {"optimizer_state": "carried"}
    if drawn["loss"] in WHOLE:
        drawn["algorithm"].pop("accumulate", None)
    drawn |= _partitions(at, name, drawn)
    return drawn | cross(at, drawn) if crossed else drawn


def _judge(at: random.Random, drawn: dict[str, Any]) -> None:
    """Losses of one number that is no mean, and those of all that a network gives."""
    if drawn["network"] == "double":
        drawn["loss"], drawn["scores"] = at.choice([own.both, own.weighted_both]), (own.sure, own.deviation)
    elif drawn["network"] == "labelled":
        drawn["loss"], drawn["scores"] = None, at.choice([None, ("token_accuracy", "perplexity")])
    elif at.random() < 0.4:
        more = {"labels": [own.weighted, own.contrast], "maps": [own.weighted], "number": [own.by_size]}
        drawn["loss"] = at.choice((more | {"numbers": [own.by_size]}).get(drawn["targets"], [drawn["loss"]]))


def cross(at: random.Random, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """What a run begins with, validates by, sends, keeps and draws; half of the draws have each.

    ``begin`` is how it begins with the round of another run of so many rounds. ``named`` says whether columns and
    classes have names, whose order is another in what follows another run, and in ``validation`` examples.
    """
    rounds, names = at.randint(2, 3) if drawn["rounds"] < 5 else 6, (NETWORKS | CROSSED)[drawn["network"]].inputs
    fields: dict[str, Any] = {"keep": at.choice(KEEPS), "named": names == "features" and at.random() < 0.7}
    fields["begin"] = (kind := at.choice(BEGINS)) and (kind, at.randint(1, rounds), rounds)
    fields["validation"] = at.choice([None, at.randint(513, 700)])
    fields["compress"] = at.choice([None, at.choice(COMPRESSORS)])
    if fields["compress"] == "sign" and drawn["network"] in ("mixed", "cnn", "gpt"):
        fields["compress"] = None  # the sign of a gradient that is 0 but for rounding
    apart = drawn["algorithm"].get("init") == "per-partition"
    fields |= {"compress": None} if apart or drawn["algorithm"]["name"] in ("d_psgd", "easgd") else {}
    fields |= {"begin": None} if apart else {}
    if at.random() < 0.5:
        how = at.choice([("transform",), ("held_out_transform",), ("transform", "held_out_transform")])
        fields |= {name: {"transform": own.jittered, "held_out_transform": own.shaken}[name] for name in how}
    return fields


def _algorithm(at: random.Random, name: str) -> dict[str, Any]:
    """An algorithm with options, and perhaps with another reduce or apply."""
    if name == "fed_per":
        sizes = {"lr": at.choice([0.05, 0.2]), "local_steps": at.randint(1, 5), "batch_size": at.choice([3, 8])}
        how = {"momentum": at.choice([0.0, 0.9]), "optimizer_state": at.choice(["fresh", "carried"])}
        return {"name": own.fed_per, **sizes, **how}
    parts: dict[str, Any] = {}
    if name not in OWN_MEAN and at.random() < 0.4:
        unclipped = name in ("scaffold", "mime_lite")
        parts["reduce"] = at.choice([each for each in REDUCES if not (unclipped and "clipped" in each)])
    if name in ("sync_sgd", "fed_avg", "fed_prox") and at.random() < 0.3:
        parts["apply"] = at.choice(["adam", "yogi", "adagrad"])
    has = ALGORITHMS[name].with_parts(parts).options
    given = {key: at.choice(list(of)) for key, of in OPTIONS.items() if key in has and at.random() < 0.5}
    if "lr_schedule_by" in given and name in ASYNCHRONOUS:
        del given["lr_schedule_by"]
    if "local_steps" in has:
        steps = at.choice(["local_steps", "local_epochs"])
        given[steps] = at.randint(1, 6 if steps == "local_steps" else 2)
    if given.get("batch_size", 1) is None:
        given.pop("accumulate", None)
    if "optimizer" in has and at.random() < 0.5:
        given = {key: value for key, value in given.items() if key != "momentum"} | at.choice(OPTIMIZERS)
        given["optimizer_state"] = at.choice(["fresh", "carried"])
    if name == "matched":
        given |= {"init": "per-partition", "match_to": at.choice(["start", "first"])}
    if given.get("outer_nesterov") and name != "diloco" and "outer_momentum" not in given:
        del given["outer_nesterov"]
    if name == "downpour":
        given["fetch_every"] = given.setdefault("push_every", 1) * at.choice([1, 1, 2])
    return {"name": name, **parts, **given}


def _partitions(at: random.Random, name: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """How examples are dealt, how many rounds there are, and who takes part in them."""
    algorithm, labels = drawn["algorithm"], drawn["targets"] == "labels"
    count = at.randint(7, 8) if "bulyan" in algorithm.get("reduce", "") else at.randint(1, 6)
    late = name in ASYNCHRONOUS
    fields: dict[str, Any] = {"partitions": count, "rounds": at.randint(6, 12) if late else at.randint(2, 4)}
    splits = ["iid", "contiguous", "sizes:1", "shards:2", "dirichlet:0.5", "dirichlet_by_class:1"]
    if drawn["held"] != "apart":
        fields["split"] = at.choice(splits if labels else splits[:3])
    if drawn["held"] == "drawn":
        fields["held_out"] = at.choice([0.1, 0.3])
    if drawn["held"] != "apart" and not late and at.random() < 0.2:
        fields["resplit_every"] = at.randint(1, 2)
    if count > 2 and name != "d_psgd" and at.random() < 0.3:
        fields |= {"cohort": at.randint(2, count), "cohort_by_size": at.random() < 0.3}
    if at.random() < 0.3:
        fields["score_partitions"] = 0.3
    if name == "d_psgd":
        fields["topology"] = at.choice(["ring", "star", "exponential"] + ["two_level:2:2"] * (count % 2 == 0))
    if late and at.random() < 0.3:
        fields["speeds"] = [at.choice([1.0, 0.5, 0.2]) for _ in range(count)]
    plain = "optimizer" not in algorithm and "momentum" not in algorithm and drawn["network"] in ("linear", "mlp")
    if plain and name in ("fed_avg", "fed_adam", "fed_prox", "sync_sgd") and at.random() < 0.5:
        fields |= at.choice([{"stacked": 2}, {"ranks": 2}])
    return fields


def as_line(drawn: Mapping[str, Any]) -> str:
    """A configuration in one line."""
    return str({key: _named(value) for key, value in drawn.items() if value is not None})


def _named(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_named, value))
    return value.__name__ if callable(value) else value


assert len({FEATURES, CLASSES, OUTPUTS, TOKENS, TIME, SIDE}) == 6, "an axis could be taken for another"
