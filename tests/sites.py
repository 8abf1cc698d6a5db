"""Sites, each with a part of the examples that lies on its machine alone, and the commands of a run over them.

At each site its part is the file `examples.npz` of one folder, whose path is the same at all
sites. There it has its number in its name, too: a site that is asked for another's part fails. The test itself
sees all parts in that folder, by which a run inline has what all the sites have together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundweave.tasks.data.datasets import pixel_scaling
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
    return rw.Dataset(examples, scaling={scaling}, classes=10)
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

    def file(self) -> Path:
        """Where each site has its examples."""
        return self.data / "examples.npz"

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
    own, data = folder / "sites", folder / "data"
    data.mkdir()
    for number, (name, rows) in enumerate(zip(names, np.array_split(np.arange(count), len(names)), strict=True)):
        (own / name).mkdir(parents=True)
        part, file = dataset.train.read(rows), own / name / f"part-{number}.npz"
        np.savez(file, inputs=part.inputs.numpy(), targets=part.targets.numpy())
        (own / name / "examples.npz").hardlink_to(file)
        (data / file.name).hardlink_to(file)
    scaling = pixel_scaling(part.inputs)
    (folder / "parts.py").write_text(FUNCTION.format(folder=data, scaling=scaling))
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
