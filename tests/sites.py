"""Sites, each with a part of the examples that lies on its machine alone, and the commands of a run over them.

At each site its part is the file `examples.npz` or `examples.json` of one folder, whose path is the same at all
sites. There it has its number in its name, too: a site that is asked for another's part fails. The test itself
sees all parts in that folder, by which a run inline has what all the sites have together.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from roundweave.tasks.data.datasets import pixel_scaling
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.sources.table import find_source
from tests.machines import Machine, Network, Started, roundweave

SCHEDULER = "tcp://head:8786"

FUNCTION = """
import numpy as np
import torch

import roundweave as rw


def part(partition, partitions):
    with np.load(f"{folder}/part-{{partition}}.npz") as stored:
        examples = rw.Examples(torch.from_numpy(stored["inputs"]), torch.from_numpy(stored["targets"]))
    return rw.Dataset(examples, scaling={scaling}, classes={classes})
"""


@dataclass(frozen=True)
class Sites:
    """Which sites have parts, in the order of the partitions, and where.

    `own` has a folder for each site, which its machine alone sees, at the path `data`. `function` is the reference
    to a function that gives a partition.
    """

    names: tuple[str, ...]
    own: Path
    data: Path
    function: str

    def file(self, suffix: str = ".npz") -> Path:
        """Where each site has its examples."""
        return self.data / f"examples{suffix}"

    @property
    def pixels(self) -> int:
        """How many pixels an image has."""
        with np.load(self.own / self.names[0] / "examples.npz") as stored:
            return int(stored["inputs"][0].size)

    def machine(self, network: Network, name: str, hides: Sequence[Path] = ()) -> Machine:
        """A machine that has the site's part and no other's; one that is no site has none."""
        if name in self.names:
            return network.machine(name, [*hides, self.own], {self.data: self.own / name})
        return network.machine(name, [*hides, self.own, self.data])


def images_at_sites(folder: Path, names: Sequence[str], count: int) -> Sites:
    """The first so many examples of MNIST, in equal parts; of scikit-learn's digits without ROUNDWEAVE_DATA."""
    mnist = Path(os.environ.get("ROUNDWEAVE_DATA", "nowhere")) / "mnist"
    dataset = find_source(f"mnist:{mnist}" if mnist.is_dir() else "digits").load()
    parts = np.array_split(np.arange(min(count, len(dataset.train))), len(names))
    return _parts_at_sites(folder, names, [dataset.train.read(rows) for rows in parts], classes=10)


def roles_at_sites(folder: Path, names: Sequence[str], count: int) -> Sites:
    """The so many longest roles of Shakespeare, dealt to the sites in turn; needs ROUNDWEAVE_DATA."""
    file = Path(os.environ.get("ROUNDWEAVE_DATA", "nowhere")) / "text" / "shakespeare_by_role.json"
    if not file.is_file():
        pytest.skip("needs ROUNDWEAVE_DATA")
    texts: dict[str, str] = json.loads(file.read_text())
    dataset = find_source(f"text:{file}").load()
    longest = sorted(texts, key=lambda role: -len(texts[role]))[:count]
    dealt = [longest[number :: len(names)] for number in range(len(names))]
    rows = [np.flatnonzero(np.isin(dataset.columns["role"], roles)) for roles in dealt]
    sites = _parts_at_sites(folder, names, [dataset.train.read(each) for each in rows], dataset.classes)
    for name, roles in zip(names, dealt, strict=True):
        (sites.own / name / sites.file(".json").name).write_text(json.dumps({role: texts[role] for role in roles}))
    return sites


def _parts_at_sites(folder: Path, names: Sequence[str], parts: Sequence[Examples], classes: int) -> Sites:
    own, data = folder / "sites", folder / "data"
    data.mkdir()
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        (own / name).mkdir(parents=True)
        file = own / name / f"part-{number}.npz"
        np.savez(file, inputs=part.inputs.numpy(), targets=part.targets.numpy())
        (own / name / "examples.npz").hardlink_to(file)
        (data / file.name).hardlink_to(file)
    scaling = pixel_scaling(parts[0].inputs)
    (folder / "parts.py").write_text(FUNCTION.format(folder=data, scaling=scaling, classes=classes))
    return Sites(tuple(names), own, data, f"{folder / 'parts.py'}:part")


def start_scheduler(head: Machine) -> Started:
    """Begin a Dask scheduler at `SCHEDULER`, and wait until it answers."""
    place = ["--host", head.address, "--port", "8786", "--no-dashboard"]
    scheduler = head.start([sys.executable, "-m", "dask", "scheduler", *place], "scheduler.log")
    scheduler.until("Scheduler at:")
    return scheduler


def start_worker(machine: Machine, *arguments: object) -> Started:
    """Begin a worker that offers the machine's name as its site; it says "joined" when it has."""
    line = roundweave("worker", SCHEDULER, "--site", machine.name, *arguments)
    return machine.start(line, f"{machine.name}.log")


def train_command(*arguments: object) -> list[str]:
    """The command line that trains on the workers, for a machine that runs or starts it."""
    return roundweave("train", "--scheduler", SCHEDULER, *arguments)
