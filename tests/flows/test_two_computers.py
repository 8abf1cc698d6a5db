"""Machines that share no folder train one network to the bits of one process, whoever of them has the runs.

The scheduler and the command are on one machine, and a worker on each of the sites. What each of them sees of the
others' folders is nothing: a site that reads another's examples, or a worker that reads the runs, fails.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from roundweave.flows.stored import Run
from roundweave.tasks.networks.sizes import MOST_BYTES
from tests.commands import Commands
from tests.machines import Machine, Network
from tests.sites import SCHEDULER, Sites, images_at_sites, start_scheduler, start_worker
from tests.storage.places.s3_server import SERVER, S3Server

# Four machines take longer to start than all that is tried on them.
pytestmark = pytest.mark.thorough

NAMES = ("berlin", "paris")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "two-computers.md"

WAITS = {"scheduler": "Scheduler at:", "worker": "joined"}
"""What is said by commands of the page that stay, once they are ready."""


@dataclass(frozen=True)
class Partners:
    """The machines, and what lies where: `runs` on the machine of the command alone."""

    machines: dict[str, Machine]
    commands: Commands
    images: Sites
    runs: Path

    def train(self, name: str, *options: object, sites: str = "berlin,paris") -> Run:
        """Train over the sites; gives the run, which lies on the machine of the command alone."""
        self.said("train", *self.placed(name), "--sites", sites, *options)
        return Run(self.runs / f"{name}.zarr")

    def images_here(self, kind: str, file: str) -> tuple[str, ...]:
        """The files of a name at both sites as data of one process, which sees them all."""
        return tuple(f"{kind}:{self.images.own / name / file}" for name in self.images.names)

    def replay(self, name: str, rounds: int) -> None:
        """Replay all rounds of a run at the sites; fails unless they are identical."""
        said = self.said("replay", name, "--all", "--scheduler", SCHEDULER)
        assert f"{name}, round 1 to {rounds}: bit-identical" in said, said

    def placed(self, name: str) -> list[object]:
        return ["--scheduler", SCHEDULER, "--name", name]

    def said(self, *words: object) -> str:
        """What a command said that has the root `runs`; fails with it if the command does."""
        return self.commands.said(*words, environment={"ROUNDWEAVE_ROOT": str(self.runs)})

    def refused(self, *words: object) -> str:
        """The one line with which a command ends that has the root `runs`."""
        return self.commands.refused(*words, environment={"ROUNDWEAVE_ROOT": str(self.runs)})


@pytest.fixture(scope="module")
def partners(tmp_path_factory) -> Iterator[Partners]:
    folder = tmp_path_factory.mktemp("two-computers")
    for name in ("images", "network", "runs"):
        (folder / name).mkdir()
    images, runs = images_at_sites(folder / "images", NAMES, 200), folder / "runs"
    with Network(folder / "network") as network:
        machines = {"head": images.machine(network, "head")}
        machines |= {name: images.machine(network, name, [runs]) for name in NAMES}
        start_scheduler(machines["head"])
        workers = [start_worker(machines[name]) for name in NAMES]
        with Commands(machines["head"]) as commands:
            for worker in workers:
                worker.until("joined")
            yield Partners(machines, commands, images, runs)


ROUNDS = {"rounds": 3, "local_steps": 3, "lr": 0.1}


def flags(fields: dict[str, object]) -> list[object]:
    return [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", value)]


def test_halves_of_images_train_to_the_bits_of_one_process(partners, train) -> None:
    """The runs lie where no worker sees them; what is stored is verified, replayed and reduced again."""
    data = partners.images.function
    run = partners.train("halves", "--data", data, *flags(ROUNDS))
    assert run.digest == train(data=data, partitions=2, **ROUNDS, name="reference").digest
    assert "3 rounds" in partners.said("verify", "halves")
    assert "berlin mapped partition berlin; paris mapped partition paris; head stored\n" in partners.said(
        "show", "halves"
    )
    partners.replay("halves", 3)
    assert "name the --scheduler of these sites" in partners.refused("replay", "halves")
    again = ["--round", 2, "--without", 1, "--save", "alone"]
    partners.said("recombine", "halves", *again, "--scheduler", SCHEDULER)
    alone = Run(partners.runs / "alone.zarr")
    update = run.round(2).update(0).direction["float32"]
    before, after = (each.state.params["float32"] for each in (run.round(1), alone.round(-1)))
    assert (after == before - update).all()


def test_a_file_of_one_name_at_each_site_is_its_partition(partners, train) -> None:
    run = partners.train("file", "--data", f"npz:{partners.images.file()}", *flags(ROUNDS))
    seen = partners.images_here("npz", "examples.npz")
    assert run.digest == train(data=seen, partitions=2, **ROUNDS, name="reference").digest
    partners.replay("file", 3)


def test_runs_in_a_bucket_are_written_by_the_one_that_has_its_credentials(partners, train, tmp_path) -> None:
    """Workers know where the bucket is, and have no key to it."""
    head = partners.machines["head"]
    server = [sys.executable, "-u", "-c", SERVER.replace("127.0.0.1", "0.0.0.0"), "9900"]
    head.start(server, "bucket.log")
    made = "import time, urllib.request as r\nfor _ in range(600):\n"
    made += " try: r.urlopen(r.Request('http://head:9900/ours', method='PUT')); break\n"
    made += " except OSError: time.sleep(0.05)"
    assert head.run([sys.executable, "-c", made]).returncode == 0
    own = S3Server(9900).environment | {
        "AWS_ENDPOINT_URL": "http://head:9900",
        "ROUNDWEAVE_ROOT": "s3://ours/runs",
    }
    words = ["--data", partners.images.function, "--sites", "berlin,paris", *flags(ROUNDS)]
    said = partners.commands.said("train", *partners.placed("bucket"), *words, environment=own)
    assert "a process of this machine stores" in said
    partners.commands.said("cp", "bucket", partners.runs / "copied", environment=own)
    reference = train(data=partners.images.function, partitions=2, **ROUNDS, name="reference")
    assert Run(partners.runs / "copied" / "bucket.zarr").digest == reference.digest


FROZEN = """
import torch

def model():
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear({pixels}, 8), torch.nn.Linear(8, 10))
    network[1].requires_grad_(False)
    return network
"""

KINDS: dict[str, dict[str, object]] = {
    "carries": {"algorithm": "scaffold", "model": "frozen.py:model"},
    "matched": {"algorithm": "matched"},
    "outer-memory": {"algorithm": "diloco", "model": "frozen.py:model"},
    "packed": {"compress": "int8"},
    "own-networks": {"algorithm": "d_psgd", "topology": "ring", "score_partitions": 0.2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_else_passes_between_store_and_sites_is_what_one_process_has(partners, train, kind) -> None:
    """Carries, networks of the partitions' own, and parameters that are sent once.

    Of the outer optimizer's memory a site is sent what its map reads, which of DiLoCo's is nothing.
    """
    fields = ROUNDS | {"data": partners.images.function} | KINDS[kind]
    if "model" in fields:
        file = partners.runs.parent / "frozen.py"
        file.write_text(FROZEN.format(pixels=partners.images.pixels))
        fields["model"] = f"{file}:model"
    run = partners.train(kind, *flags(fields))
    assert run.digest == train(partitions=2, **fields, name="reference").digest
    parameters = run.round(1).state.params["float32"].numel()
    slots = {"carries": 3, "own-networks": 2}.get(kind, 1)  # parameters, memory and carry
    assert run.history()["received_bytes"].loc[2:].tolist() == [slots * 4 * parameters] * 2
    # Each of four tensors has an exponent of two bytes.
    assert run.history()["sent_bytes"].loc[2] == parameters + 8 or kind != "packed"
    partners.replay(kind, 3)


def test_units_are_not_matched_by_what_examples_of_a_site_give(partners) -> None:
    words = ["--data", partners.images.function, "--sites", "berlin,paris", "--algorithm", "matched"]
    words += [*partners.placed("by-activations"), "--match", "activations"]
    code, said = partners.commands.run("train", *words, environment={"ROUNDWEAVE_ROOT": str(partners.runs)})
    assert code == 2
    assert "error: match activations needs examples of partition 0 where networks are reduced" in said


def test_outputs_of_sites_are_scored_at_once_where_they_may_leave(partners) -> None:
    file = partners.runs.parent / "one.py"
    file.write_text("def one(outputs, targets):\n    return (outputs.argmax(1) == targets).float().mean()\n")
    score = ["--scores", f"{file}:one", "--executor", "graph", "--scheduler", SCHEDULER]
    for name, more in ("unasked", []), ("asked", ["--describe-sites"]):
        partners.train(name, "--data", partners.images.function, "--rounds", 1, *more)
    runs = {"ROUNDWEAVE_ROOT": str(partners.runs)}
    code, said = partners.commands.run("score", "unasked@1", *score, environment=runs)
    assert (code, said.splitlines()[-1].partition(";")[0]) == (2, "error: one needs held-out outputs and targets")
    assert "one" in partners.said("score", "asked@1", *score)


@pytest.mark.slow
def test_a_network_that_one_process_would_not_make_for_all_is_scored_at_the_sites(partners, train) -> None:
    hidden = MOST_BYTES // 4 // partners.images.pixels
    fields: dict[str, object] = {"data": partners.images.function, "rounds": 1, "local_steps": 1}
    run = partners.train("large", *flags(fields), "--model-options", json.dumps({"hidden": hidden}))
    reference = train(partitions=2, **fields, model_options={"hidden": hidden}, name="reference")
    assert run.digest == reference.digest
    assert run.round(0).commit.score == reference.round(0).commit.score


@pytest.mark.parametrize(
    "options", [["fed_buff", "--local-steps", 3], pytest.param(["downpour"], marks=pytest.mark.slow)]
)
def test_what_a_parameter_server_of_sites_has_stored_is_replayed_at_them(partners, options) -> None:
    """In which order updates came is recorded."""
    name = options[0]
    partners.train(name, "--data", partners.images.function, "--rounds", 6, "--algorithm", *options)
    partners.replay(name, 6)


def write_tables(partners: Partners, name: str, *texts: str) -> str:
    """Write a table of one name at each site; gives it as data."""
    for site, text in zip(partners.images.names, texts, strict=True):
        (partners.images.own / site / name).write_text(text)
    return f"csv:{partners.images.data / name}"


def table(columns: str, labels: str) -> str:
    """Forty rows of two numbers, with the labels in turn."""
    words = labels.split(",")
    rows = [f"{number / 7},{number % 3},{words[number % len(words)]}" for number in range(40)]
    return "\n".join([columns, *rows])


def test_sites_agree_on_the_names_of_their_labels(partners, train) -> None:
    """Of three kinds of animals each site knows two, and both know cats by one number."""
    data = write_tables(partners, "animals.csv", table("a,b,animal", "cat,dog"), table("a,b,animal", "cat,mouse"))
    run = partners.train("animals", "--data", data, *flags(ROUNDS))
    assert run.attributes["data"]["class_names"] == ["cat", "dog", "mouse"]
    seen = partners.images_here("csv", "animals.csv")
    assert run.digest == train(data=seen, partitions=2, **ROUNDS, name="reference").digest


def test_tables_with_other_columns_are_refused_by_the_names_of_their_sites(partners) -> None:
    data = write_tables(partners, "others.csv", table("a,b,animal", "cat,dog"), table("a,c,animal", "cat,dog"))
    refused = partners.refused("train", *partners.placed("others"), "--sites", "berlin,paris", "--data", data)
    assert all(word in refused for word in ("'c'", "paris", "berlin"))


def test_pixels_at_one_site_and_numbers_at_another_are_refused_by_the_sites_names(partners) -> None:
    for site, kind in zip(partners.images.names, ("uint8", "float32"), strict=True):
        inputs = np.arange(40 * 4).reshape(40, 2, 2).astype(kind)
        np.savez(partners.images.own / site / "kinds.npz", inputs=inputs, targets=np.arange(40) % 2)
    words = ["--sites", "berlin,paris", "--data", f"npz:{partners.images.data / 'kinds.npz'}"]
    refused = partners.refused("train", *partners.placed("kinds"), *words)
    assert all(words in refused for words in ("paris has inputs that are numbers, ", "berlin has pixels"))


def test_the_page_runs_on_machines_that_share_nothing(tmp_path, train) -> None:
    """Each line of its first block, on the machine that it names."""
    images, runs = images_at_sites(tmp_path, NAMES, 200), tmp_path / "runs"
    runs.mkdir()
    [block] = re.findall(r"```sh\n(head\$.*?)```", PAGE.read_text(), flags=re.DOTALL)
    with Network(tmp_path) as network:
        machines = {name: images.machine(network, name, [runs]) for name in images.names}
        machines["head"] = network.machine("head", [images.own, images.data])
        for line in block.replace("/data/examples.npz", str(images.file())).splitlines():
            name, words = line.partition("#")[0].split("$", 1)
            command = ["sh", "-c", f"cd {tmp_path} && PATH={Path(sys.executable).parent}:$PATH exec env {words}"]
            if " scheduler " in words or " worker " in words:
                waits = next(said for word, said in WAITS.items() if f" {word} " in words)
                machines[name].start(command, f"{name}-{len(words)}.log").until(waits)
            else:
                done = machines[name].run(command)
                assert done.returncode == 0, done.stdout + done.stderr
        assert "both, round 1 to 20: bit-identical" in done.stdout
    seen = tuple(f"npz:{images.own / name / 'examples.npz'}" for name in images.names)
    fields = {"data": seen, "partitions": 2, "algorithm": "fed_avg", "local_epochs": 1, "rounds": 20}
    assert Run(runs / "both.zarr").digest == train(**fields, name="reference").digest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sites", "copies", "updates", "more"),
    [("berlin,paris", 2, 2, []), ("berlin:2", 1, 2, []), ("berlin,paris", 2, 0.5, ["--compress", "int8"])],
)
def test_a_round_costs_a_site_the_parameters_once_and_its_updates(
    partners, sites: str, copies: int, updates: float, more: list[str]
) -> None:
    """And at most a tenth more, with headers and all that Dask says, however many workers a site has.

    The start of a run is left out: of two runs one has 25 rounds more.
    """
    images = partners.images
    for number, name in enumerate(NAMES):
        with suppress(FileExistsError):
            (images.own / "berlin" / f"pair-{number}.npz").hardlink_to(images.own / name / "examples.npz")
    source = Path(images.function.rpartition(":")[0])
    pair = source.with_name("pair.py")
    pair.write_text(source.read_text().replace("/part-", "/pair-"))
    hidden = 2_000_000 // (images.pixels + 11)
    words = ["--data", f"{pair}:part" if copies == 1 else images.function, "--local-steps", 1]
    words += ["--model-options", json.dumps({"hidden": hidden}), "--evaluate-every", 100]
    berlin, counts = partners.machines["berlin"], []
    second = start_worker(berlin)
    second.until("joined", times=len(berlin.started))
    for rounds in (2, 27):
        before = np.array([(place.received(), place.sent()) for place in partners.machines.values()][1:])
        partners.train(f"traffic-{copies}-{updates}-{rounds}", *words, *more, "--rounds", rounds, sites=sites)
        after = np.array([(place.received(), place.sent()) for place in partners.machines.values()][1:])
        counts.append((after - before).sum(axis=0))
    second.end()
    size = 4 * ((images.pixels + 1) * hidden + (hidden + 1) * 10)
    down, up = (counts[1] - counts[0]) / 25 / size
    assert down <= copies * 1.1
    assert up <= updates * 1.1
