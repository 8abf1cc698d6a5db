"""Writes the pages of the reference from the code, and the comparison with peers from `peers.json`."""

from __future__ import annotations

import inspect
import itertools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lookups import commands, events, failures, plugins
from picture import draw
from tables import Row, described, few, first_sentence, label_of, linked, of_model, table

import roundweave as rw
from roundweave.flows.config.algorithms import EVERY_OPTION, option_fields
from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.merging.merge import MergeConfig
from roundweave.flows.config.plugins import plugin_classes
from roundweave.flows.config.train import Deployment, Execution
from roundweave.storage.hierarchy.schema import VERSION
from roundweave.tasks.algorithms.table import ABOUT, ALGORITHMS
from tests.benchmarks.table.measuring import Ours
from tests.benchmarks.table.rows.base import EXECUTORS
from tests.benchmarks.table.showing import cell, number

TOPICS = {
    "Configurations, runs and commands": ("flows",),
    "Stored rounds and their values": ("storage",),
    "Algorithms and their parts": ("tasks.algorithms",),
    "Data": ("tasks.data",),
    "Networks and their units": ("tasks.networks", "tasks.matching", "tasks.merging"),
    "Everything else": ("",),
}
"""The headings of the facade's names, by the packages that define them."""

PATHS = {
    "params/": "the trained parameters after each round",
    "buffers/": "the buffers after each round, such as running means",
    "memory/": "the state of the outer optimizer (apply), such as its velocity",
    "frozen/": "parameters that are not trained; stored once",
    "updates/buffers/": "the buffers that each partition sent",
    "updates/extras/": "auxiliary vectors (extras) that each partition sent",
    "updates/observed/": "tensors that maps observed for the reduce",
    "updates/": "the direction of each partition, as one vector per dtype",
    "carry/": "client state (carry): what each partition keeps for its next round",
    "permutations/": "how the hidden units of each partition were matched",
    "similarities/": "how similar the matched units are",
    "scores/": "scores on the held-out examples",
    "metrics/": "numbers that maps report: their mean, weighted by examples",
    "bookkeeping/": "seconds; how many updates were accepted, refused and absent",
    "partitions/": "the partition of each example; -1 for held-out examples",
    "round": "coordinate: the number of the round",
    "committed": "coordinate: whether the round is committed",
    "commits": "the folder of the commit records; its shape is the room for rounds",
}
"""What the arrays of a run hold, by the beginning of their paths; the first that fits."""

RECORDS = ("Commit", "UpdateRecord", "Score", "Arrival")
"""The dataclasses whose fields a commit record has."""


def generate(docs: Path) -> None:
    """Write the pages of `PAGES` into `docs/reference/`, those of the facade's names, the peers, and a picture."""
    for name, page in PAGES.items():
        _write(docs / "reference" / f"{name}.md", page())
    for name in rw.__all__:
        _write(docs / "reference" / "generated" / f"{name}.md", _name_page(name))
    draw(docs / "reference" / "generated" / "rounds.png")
    _write(docs / "reference" / "generated" / "peers.md", peers(json.loads((docs / "peers.json").read_text())))


def options() -> str:
    """All options of a run and of a merge."""
    rows: list[Row] = []
    for plugin in plugin_classes():
        rows += of_model(f"plugin {plugin.__module__.rpartition('.')[2]}", plugin)
    models = {"experiment": Experiment, "execution": Execution, "deployment": Deployment}
    rows += [row for group, model in models.items() for row in of_model(group, model)]
    taken = {name: [each for each in ABOUT if name in option_fields(each)] for name in EVERY_OPTION}
    rows += [(*described(name, field), few(taken[name])) for name, field in EVERY_OPTION.items()]
    shown = [linked(row) for _, row in sorted({str(row[0]).strip("`"): row for row in rows[::-1]}.items())]
    head = ("name", "what for", "type", "default", "belongs to")
    merging = [described(name, field) for name, field in MergeConfig.model_fields.items()]
    return "\n".join(
        [
            "# All options",
            "",
            "This table has every option of a training run, in alphabetical order. `TrainConfig(lr=0.1)`, "
            "`--lr 0.1` and `lr = 0.1` in a TOML file set the same option. A flag has `-` where the name has `_`: "
            "`--local-steps 5`. A `bool` is a flag without a value, such as `--private`. A `bool` of an "
            "algorithm has a second flag, such as `--no-nesterov`. An option without a default is off, or its "
            "description says what happens.",
            "",
            "The last column says where the option belongs. The *experiment* decides what is computed, and a run "
            "keeps its experiment. The *execution* decides how the run is computed, and may "
            "change when you resume. The *deployment* counts for `roundweave serve` and `deploy` alone. *plugin* "
            "names a [plugin](plugins.md). A name such as `fed_avg` is an "
            "[algorithm](algorithms.md) that takes the option; the default is that of the first algorithm.",
            "",
            *table(head, shown),
            "",
            "## Options of a merge",
            "",
            "`MergeConfig` and `roundweave merge` take these options.",
            "",
            *table(head[:4], merging),
        ]
    )


def algorithms() -> str:
    """Each algorithm with its parts and options, and all other things that have a name."""
    lines = [
        "# Algorithms and other names",
        "",
        "`--algorithm NAME` selects an algorithm. `--map`, `--reduce` and `--apply` replace one of its parts.",
        "The reduce `Mean` weighs an update by the partition's examples. `Mean(weighted=False)` weighs all alike.",
        "",
    ]
    for name, what in ABOUT.items():
        lines += [f"## {name}", "", f"{what[0].upper()}{what[1:]}.", ""]
        if name in ALGORITHMS:
            preset = ALGORITHMS[name]
            parts = [f"{kind} `{label_of(getattr(preset, kind))}`" for kind in ("map", "reduce", "apply")]
            lines += [f"Its parts: {', '.join(parts)}.", ""]
        taken = [described(option, field) for option, field in option_fields(name).items()]
        lines += [*table(("option", "what for", "type", "default"), taken), ""]
    from roundweave.flows.command.subcommands.starting import tables

    for title, rows in tables().items():
        if title not in ("algorithms", "plugins"):
            lines += [f"## Names of {title}", "", *table([*rows[0]], [[*row.values()] for row in rows]), ""]
    return "\n".join(lines)


def python() -> str:
    """The names of the facade by topic, with their first sentences."""
    lines = ["# Python", "", "`import roundweave as rw` gives these names.", ""]
    found: dict[str, list[Row]] = {topic: [] for topic in TOPICS}
    for name in rw.__all__:
        shown = getattr(rw, name)
        home = shown.__module__.removeprefix(f"{rw.__name__}.")
        topic = next(each for each, homes in TOPICS.items() if home.startswith(homes))
        found[topic].append((f"[`{name}`](generated/{name}.md)", first_sentence(shown)))
    for topic, rows in found.items():
        lines += [f"## {topic}", "", *table(("name", "what for"), sorted(rows)), ""] if rows else []
    names = "\n".join(f"generated/{name}" for name in sorted(rw.__all__))
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", names, "```"])


def store() -> str:
    """The arrays of a run, and the fields of its records."""
    examples = _stored_arrays()
    arrays: list[Row] = []
    for start, what in PATHS.items():
        dtype, dims, example = examples.get(start, ("", "", ""))
        arrays.append((f"`{start}…`" if start.endswith("/") else f"`{start}`", what, dtype, dims, example))
    records = [
        f"```{{eval-rst}}\n.. autoclass:: roundweave.storage.rounds.commits.{name}\n   :no-members:\n```\n"
        for name in RECORDS
    ]
    return "\n".join(
        [
            "# The store of a run",
            "",
            f"A run is one zarr v3 hierarchy, `NAME.zarr`. This page describes version {VERSION}. "
            "[The store](../explanation/store.md) explains why the store looks like this.",
            "",
            "## Arrays",
            "",
            "Arrays over rounds have one row per round; row 0 is the initial state. "
            "In the names of dimensions, `…` stands for the path of the array.",
            "",
            *table(("path", "content", "dtype", "dimensions", "example"), arrays),
            "",
            "## Commit records",
            "",
            "`commits/NUMBER.json` has the fields of a `Commit`. A round exists once its record exists.",
            "",
            *records,
        ]
    )


def _stored_arrays() -> dict[str, Row]:
    """The dtype, the dimensions and the path of an array of a real run, for each of `PATHS` that such a run has.

    Raises `StopIteration` for an array that is not listed there.
    """
    found: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        for algorithm, options in {
            "scaffold": {},
            "fed_avg": {"reduce": "matched", "outer_momentum": 0.5},
        }.items():
            config = rw.TrainConfig(
                algorithm={"name": algorithm, **options},
                model_options={"hidden": 8},
                partitions=2,
                rounds=1,
                executor="inline",
                root=folder,
                name=algorithm,
            )
            run = rw.train(config, bar=False)
            for file in sorted(run.path.rglob("zarr.json")):
                document, path = json.loads(file.read_text()), str(file.parent.relative_to(run.path))
                if document["node_type"] == "array":
                    start = next(each for each in PATHS if path.startswith(each))
                    dims = ", ".join(f"`{each.replace(f'{path}.', '….')}`" for each in document["dimension_names"])
                    found.setdefault(start, (document["data_type"], dims, f"`{path}`"))
    return found


def peers(measured: Mapping[str, Any]) -> str:
    """The medians and ratios of `peers.json`, a table for each row of the comparison."""
    machine = ", ".join(f"{name} {value}" for name, value in measured["machine"].items())
    lines = [f"Measured on one machine: {machine}.", ""]
    for title, each in itertools.groupby(measured["lines"], key=lambda line: line["title"]):
        rows = []
        for line in each:
            name, _, keep = line["row"].partition(", ")
            ours = [cell(ours and Ours(**ours)) for ours in map(line["ours"].get, EXECUTORS)]
            rows.append((line["reading"], line["peer"], number(line["median"]), keep, *ours))
        head = ("reading", "peer", "its median", "Roundweave stores", *(f"`{each}`" for each in EXECUTORS))
        lines += [f"### {title[0].upper()}{title[1:]}", "", f"Row `{name}`.", "", *table(head, rows), ""]
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "options": options,
    "algorithms": algorithms,
    "commands": commands,
    "python": python,
    "plugins": plugins,
    "store": store,
    "errors": failures,
    "events": events,
}
"""The generated pages of the reference."""


def _name_page(name: str) -> str:
    found = getattr(rw, name)
    kind = "class" if inspect.isclass(found) else "function"
    is_config = name.endswith("Config")
    more = " The table of [all options](../options.md) has its fields." if name == "TrainConfig" else ""
    lines = [f"# {name}", "", f"`import roundweave as rw` gives `rw.{name}`.{more}", "", "```{eval-rst}"]
    lines.append(f".. auto{kind}:: roundweave.{name}{'(**options)' if is_config else ''}")
    if is_config:
        lines.append("   :no-members:")
    elif inspect.isclass(found) and not {"Protocol", "BaseModel"} & {each.__name__ for each in found.__mro__}:
        lines.append(f"   :inherited-members: {_pages_of_their_own(found)}")
    lines.append("```")
    if is_config and not more:
        fields = [described(each, field) for each, field in found.model_fields.items()]
        lines += ["", "## Fields", "", *table(("field", "what for", "type", "default"), fields)]
    return "\n".join(lines)


def _pages_of_their_own(found: type) -> str:
    """The bases whose members a class does not show: they have a page, or are not of this package."""
    shown = {getattr(rw, name) for name in rw.__all__}
    bases = found.__mro__[1:]
    return ", ".join(
        each.__name__ for each in bases if each in shown or not each.__module__.startswith("roundweave")
    )


def _write(path: Path, text: str) -> None:
    """Write a page; one that has not changed keeps its time, so that Sphinx does not build it again."""
    path.parent.mkdir(exist_ok=True)
    text = f"{text.rstrip()}\n"
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")
