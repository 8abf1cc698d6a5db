"""Strategies race on a real cluster, one is chosen, written to a file, and done as it says."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import inf, log
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.config.files import read_toml, write_toml
from roundweave.flows.plugins.race.choosing import RaceResult, compared, plan, slower, timed, too_long, tried_steps
from roundweave.flows.plugins.race.racing import Point, Race
from roundweave.flows.plugins.race.results import Raced
from roundweave.flows.plugins.race.strategies import Strategy, Workload
from roundweave.storage.errors import RoundFailed, UsageError
from tests.flows.command.in_process import refused, run


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> RaceResult:
    """A plan for two workers, of a run of about 0.05 s: far shorter than a heat, however busy the machine is."""
    root = tmp_path_factory.mktemp("planned")
    config = rw.TrainConfig(data="digits", algorithm="auto", lr=0.2, rounds=2, workers=2, root=root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roundweave.flows.plugins.race.choosing.HEAT", 5.0)
        made = plan(config)
    assert list(root.iterdir()) == []  # trials are deleted
    return made


@pytest.mark.thorough
def test_all_strategies_have_raced_or_are_refused(planned: RaceResult) -> None:
    assert planned.raced.keys() | planned.refused.keys() == planned.strategies.keys()
    assert {"single", "synchronous", "local 10", "local epoch", "asynchronous"} <= planned.strategies.keys()
    assert not planned.raced.keys() & planned.refused.keys()
    for name, row in planned.raced.items():
        assert row.trained == pytest.approx(row.rounds * row.seconds)
        assert row.epoch == pytest.approx(row.seconds * planned.strategies[name].rounds(planned.work))
        assert row.behind is None or row.behind > 0
    assert min(row.loss for row in planned.raced.values()) < 0.7 * log(10)  # somebody has learned something


@pytest.mark.thorough
def test_who_is_chosen_is_about_the_quickest(planned: RaceResult) -> None:
    chosen = planned.raced[planned.chosen.name]
    assert chosen.behind <= 1.1
    assert planned.reason.startswith(planned.chosen.name)
    assert f" has a held-out loss of {chosen.loss:.3g} after " in planned.reason


@pytest.mark.thorough
def test_a_run_shorter_than_the_race_is_judged_at_its_end(planned: RaceResult) -> None:
    alone = [row for name, row in planned.raced.items() if name.startswith("single")]
    judged = [row.rounds for row in alone if row.behind]  # who was out before the last heat trained less
    assert judged == pytest.approx([2] * len(judged))
    assert planned.length == pytest.approx(max(2 * row.seconds for row in alone))
    assert planned.reason.endswith("in one process, so losses are compared at its end")


@pytest.mark.thorough
def test_the_file_has_the_plan(planned: RaceResult, tmp_path: Path) -> None:
    file = tmp_path / "chosen.toml"
    write_toml(file, planned.planned)
    read = rw.TrainConfig(**read_toml(file))
    assert read == planned.planned
    assert read.planned["strategy"] == planned.chosen.name
    assert {*read.planned["raced"], *read.planned["refused"]} == planned.strategies.keys()


def of_race(**behind: tuple[str, int, float | None]) -> RaceResult:
    """A plan of strategies by executor, threads, and how far they were behind."""
    strategies = {
        name: Strategy(name, how, 1, "fed_avg", 1, 32, threads) for name, (how, threads, _) in behind.items()
    }
    numbers = {"loss": 0.5, "trained": 2.0, "rounds": 1.0, "seconds": 2.0, "epoch": 2.0}
    raced = {name: Raced(**numbers, behind=times) for name, (_, _, times) in behind.items()}
    work = Workload(64, 32, state=1, epochs=1, scored=1, local="fed_avg")
    return RaceResult(rw.TrainConfig(algorithm="auto"), work, 2, strategies, raced, {})


@pytest.mark.parametrize(
    ("race", "chosen"),
    [
        ({"ranks": ("auto", 1, 1.0), "single": ("inline", 1, 1.09)}, "single"),  # less can go wrong in it
        ({"ranks": ("auto", 1, 1.0), "single": ("inline", 1, 1.11)}, "ranks"),
        ({"threads": ("inline", 2, 1.0), "single": ("inline", 1, 1.05)}, "single"),
        ({"threads": ("inline", 2, 1.0), "single": ("inline", 1, 1.2)}, "threads"),
        ({"large": ("inline", 1, 1.0), "single": ("inline", 1, 1.05)}, "large"),  # of one kind the best
        ({"ranks": ("auto", 1, 1.0), "single": ("inline", 1, None)}, "ranks"),  # was out before
    ],
)
def test_one_process_is_chosen_where_it_is_about_as_good(race: dict, chosen: str) -> None:
    assert of_race(**race).chosen.name == chosen


class Ran:
    """A lane that has run: its losses by seconds, of which refining gives one more."""

    def __init__(self, *points: tuple[float, float], between: tuple[float, float]) -> None:
        self.curve = [Point(0.001, 102.0), *(Point(*point) for point in points)]
        self.between = Point(*between)

    def refine(self) -> None:
        self.curve = sorted([*self.curve, self.between], key=lambda point: point.seconds)


def test_who_had_learned_most_before_it_was_out_is_compared_as_well() -> None:
    lanes = {
        "last": Ran((16, 2.0), between=(8, 7.0)),
        "quick": Ran((4, 6.5), between=(2, 7.0)),  # 95 % of the 100 that the best took off are done at 7
        "slow": Ran((4, 50.0), between=(2, 60.0)),
    }
    times = compared(lanes, Race(["last"], ["quick", "slow"], {}, seconds=16))  # type: ignore[arg-type]
    assert list(times.items()) == [("quick", 1), ("last", pytest.approx(4))]


def test_after_a_race_over_the_whole_run_the_lowest_loss_at_its_end_is_the_best() -> None:
    lanes = {
        "lowest": Ran((16, 2.0), between=(4, 3.0)),
        "over": Ran((2, 3.0), (inf, 3.0), between=(1, 50.0)),  # its run is over, and it learns no more
        "slow": Ran((20, 60.0), between=(8, 80.0)),
        "out": Ran((4, 1.0), between=(2, 7.0)),
    }
    ended = Race(["lowest", "over", "slow"], ["out"], {}, seconds=16, whole=True)
    times = compared(lanes, ended)  # type: ignore[arg-type]
    assert list(times) == ["lowest", "over", "slow"]
    assert times["lowest"] == 1
    assert times["over"] == pytest.approx(4)  # the best had a loss of 3 after 4 s


def named(*strategies: Strategy) -> dict[str, Strategy]:
    return {each.name: each for each in strategies}


def test_of_one_process_and_another_number_of_threads_one_races() -> None:
    one, two = (Strategy(f"{n} threads", "inline", 1, "fed_avg", 200, 32, n) for n in (1, 2))
    other = Strategy("larger", "inline", 1, "fed_avg", 50, 128, 2)
    candidates = named(one, two, other)
    rather = slower(candidates, {"1 threads": 0.010, "2 threads": 0.0095, "larger": 0.02})  # not 1.1 times as fast
    assert rather == {"2 threads": "its steps take 0.95 times as long as those of 1 threads"}
    assert list(slower(candidates, {"1 threads": 0.010, "2 threads": 0.008, "larger": 0.02})) == ["1 threads"]


def test_who_has_long_rounds_is_tried_in_shorter_ones() -> None:
    single = Strategy("single", "inline", 1, "fed_avg", 51, 32)
    assert tried_steps(single, {"single": 0.0095}, heat=0.3) == 10  # three such rounds take 0.285 s
    assert tried_steps(single, {"single": 1e-6}, heat=0.3) == 51
    assert tried_steps(single, {}, heat=0.3) == 51  # of several workers, who would not learn the same


def test_workers_whose_rounds_are_longer_than_a_heat_do_not_race() -> None:
    single = Strategy("single", "inline", 1, "fed_avg", 2000, 32)
    local = (Strategy(f"local {n}", "auto", 2, "fed_avg", n, 32) for n in (10, 100, 1000))
    assert too_long(named(single, *local), {"single": 0.01}, heat=2) == {
        "local 1000": "a round would take 10 s, longer than a heat of 2 s"
    }


@dataclass
class Measured:
    """Steps of larger batches than `most` are not finite."""

    most: int

    def step_seconds(self, single: Strategy) -> float:
        if single.batch > self.most:
            raise RoundFailed("direction of 1.weight has 64 non-finite of 64 numbers")
        return 0.5


def test_a_batch_whose_learning_rate_is_too_large_does_not_race_and_the_others_do() -> None:
    """A larger batch has a larger rate: 0.1 at 32 is 0.4 at 128."""
    single = Strategy("single", "inline", 1, "fed_avg", 100, 32)
    candidates = named(single, replace(single, name="single, batch 128", batch=128))
    steps, failed = timed(Measured(32), candidates)
    assert (steps, [*failed]) == ({"single": 0.5}, ["single, batch 128"])
    with pytest.raises(RoundFailed, match=r"^single: direction of 1.weight has 64 .*; try a smaller lr"):
        timed(Measured(1), candidates)


@pytest.mark.thorough
def test_what_no_strategy_can_do_is_refused(tmp_path: Path) -> None:
    # One process learns by fed_avg, which has no such option; and there are no workers to distribute to.
    config = rw.TrainConfig(algorithm="fed_prox", mu=0.5, workers=1, root=tmp_path)
    says = "no strategy can do this work here: algorithm fed_avg takes no mu"
    with pytest.raises(rw.RoundweaveError, match=says):
        plan(config)


def test_the_command_prints_and_shows(monkeypatch, capsys, tmp_path: Path) -> None:
    planned = of_race(ranks=("auto", 1, 1.2), single=("inline", 1, 1.0))
    monkeypatch.setattr("roundweave.flows.plugins.race.choosing.plan", lambda config: planned)
    file, root = str(tmp_path / "chosen.toml"), str(tmp_path)
    code, out, _ = run(capsys, "plan", "--algorithm", "auto", "--save", file)
    assert (code, out.split()[0]) == (0, "strategy")
    assert f"chosen: {planned.reason}" in out.replace("\n", " ")
    assert f"next: `roundweave train {file}`" in out.replace("\n", "")
    assert run(capsys, "train", file, "--name", "chosen", "--root", root)[0] == 0
    assert "a round in the race" in run(capsys, "show", "chosen", "--root", root)[1]
    shown = json.loads(run(capsys, "show", "chosen", "--root", root, "--json")[1])["planned"]
    assert shown["taken"] > 0
    assert shown["raced"][shown["strategy"]]["seconds"] > 0
    printed = json.loads(run(capsys, "plan", "--algorithm", "auto", "--json")[1])
    assert printed["chosen"] in printed["strategies"]
    assert (printed["config"]["rounds"], printed["workers"]) == (planned.planned.rounds, 2)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("none/plan.toml", "none/plan.toml: there is no folder none; make it first"),
        ("plan.txt", "plan.txt: a configuration ends in .toml"),
    ],
)
def test_a_file_that_cannot_be_written_is_said_at_once(capsys, file: str, message: str) -> None:
    code, said = refused(capsys, "plan", "--save", file)
    assert (code, message in said) == (2, True)


def test_data_with_partitions_of_their_own_are_not_dealt(own, tmp_path: Path) -> None:
    file = own(
        "import torch\ndef data(partition, partitions):\n    return torch.ones(8, 2), torch.zeros(8).long()\n"
    )
    with pytest.raises(UsageError, match="these data give each its own"):
        plan(rw.TrainConfig(data=f"{file}:data", root=tmp_path))
