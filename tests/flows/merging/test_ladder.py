"""`match = auto`: ways from cheap to dear, until the barrier is within the bound."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import roundweave as rw
from flows.merging import flow
from flows.merging.ladder import Ladder, Rung, Way, ways
from flows.merging.preparing import plan_merge
from flows.merging.result import MergeResult
from storage.checkpoints.writing import write_checkpoint
from storage.errors import UsageError
from storage.rounds.commits import Score
from storage.rounds.store import RoundStore
from storage.runs.checkpoints import read_checkpoint
from storage.runs.run import open_run
from tasks.data.partitions import Partitions
from tasks.data.sources.digits import Digits
from tasks.data.splits import Split
from tasks.matching.units import find_units
from tasks.networks.reference import Mlp
from tests.flows.command import in_process

Merge = Callable[..., MergeResult]
MLPS = ("mlp0@-1", "mlp1@-1")
CNNS = ("cnn0@-1", "cnn1@-1")


@pytest.fixture(scope="module")
def merge(root: Path) -> Merge:
    def run(*networks: str, **fields: object) -> MergeResult:
        given = {"executor": "inline", "root": root, "points": 3, "examples": 400, "match": "auto"} | fields
        return rw.merge(rw.MergeConfig(networks=networks, **given))

    return run


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the networks were observed, matched and by what, and how many blends were scored."""
    counts: Counter[str] = Counter()

    def watch(name: str, told: Callable[..., str], number: Callable[..., int]) -> None:
        function = getattr(flow, name)

        def watched(*given: object) -> object:
            counts[told(*given)] += number(*given)
            return function(*given)

        monkeypatch.setattr(flow, name, watched)

    watch("observe_units", lambda *_: "observed", lambda *_: 1)
    watch("match_units", lambda plan, _: f"{plan.config.match} {plan.config.soft}", lambda *_: 1)
    watch("score_networks", lambda *_: "scored", lambda _, __, blends: len(blends))
    return counts


def options(result: MergeResult) -> list[str]:
    return [rung.way.options for rung in result.ladder.rungs]


def matched(result: MergeResult) -> list[tuple[str, bool]]:
    return [(rung.way.match, rung.way.repair) for rung in result.ladder.rungs]


def without_seconds(ladder: Ladder) -> list[tuple[Way, Score, float | None]]:
    return [(rung.way, rung.score, rung.barrier) for rung in ladder.rungs]


# Values, by hand.


def rung(height: float | None, match: str = "none") -> Rung:
    return Rung(Way(match), Score(1.0), height, 0.1)


def test_the_first_within_the_bound_is_taken_else_the_lowest() -> None:
    tried = rung(3.0), rung(1.0, "weights"), rung(2.0, "mixed")
    assert not Ladder(0.5, tried).reached
    assert Ladder(0.5, tried).chosen == tried[1]
    assert "no way reached the bound of 0.5000" in Ladder(0.5, tried).reason
    assert Ladder(2.0, tried).reached, "at most the bound"
    assert Ladder(2.0, tried).chosen == tried[2]
    assert Ladder(2.0, tried).reason == "the first way whose barrier is at most 2.0000"
    assert Ladder(0.5, (rung(1.0), rung(1.0, "weights"))).chosen == rung(1.0), "of equal ones the cheaper"


def test_a_parent_is_no_merge() -> None:
    tried = rung(3.0), rung(None, "weights")
    assert not Ladder(100.0, tried).reached
    assert Ladder(100.0, tried).chosen == tried[0]


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (Way("none"), "--match none --no-repair"),
        (Way("weights", repair=True), "--match weights --repair"),
        (Way("mixed", average="best"), "--match mixed --average best --no-repair"),
        (Way("mixed", True, soft=3), "--match mixed --soft 3 --repair"),
    ],
)
def test_a_way_is_told_as_options(way, told) -> None:
    assert way.options == told


def every_way(root: Path, *networks: str, **fields: object) -> list[str]:
    config = rw.MergeConfig(networks=networks, root=root, match="auto", **fields)
    return [way.options for way in ways(plan_merge(config), [rung(1.0, "weights")])]


def test_all_ways_that_a_network_allows_from_cheap_to_dear(root) -> None:
    found = every_way(root, *MLPS)
    kinds = ("none", "weights", "activations", "mixed")
    assert found == [
        *(f"--match {kind} --{no}repair" for no in ("no-", "") for kind in kinds),
        "--match weights --average best --no-repair",
        "--match mixed --soft 3 --no-repair",
        "--match mixed --soft 3 --repair",
    ]
    assert every_way(root, *MLPS, repair=False) == [way for way in found if "--no-repair" in way]
    without_best = [way for way in found if "best" not in way]
    assert every_way(root, *MLPS, "mlp2@-1") == without_best
    assert every_way(root, *MLPS, coefficients=(1, 3)) == without_best


def test_a_network_without_hidden_units_is_averaged_alone(root, tmp_path) -> None:
    for name in "ab":
        state = {"1.weight": torch.randn(10, 64), "1.bias": torch.zeros(10)}
        write_checkpoint(tmp_path / f"{name}.pt", state)
    places = [str(tmp_path / f"{name}.pt") for name in "ab"]
    found = every_way(root, *places, model="logistic", data="digits")
    assert found == ["--match none --no-repair", "--match weights --average best --no-repair"]


# How far it goes.


def test_a_network_and_itself_need_no_matching(merge, done) -> None:
    result = merge("mlp0@-1", "mlp0@-1")
    assert options(result) == ["--match none --no-repair"]
    assert result.ladder.reached
    assert result.ladder.chosen.barrier == pytest.approx(0, abs=1e-6)
    # One network of two places, at the ends and in the middle of the path; the ensemble, and the mean.
    assert done == {"none None": 1, "scored": 5}


def test_a_fork_needs_no_matching(root, merge, done) -> None:
    fields = {"data": "digits", "partitions": 1, "local_epochs": 1, "lr": 0.01, "rounds": 1, "seed": 9}
    rw.train(rw.TrainConfig(**fields, start_from="mlp0@-1", root=root, executor="inline", name="fork", model="mlp",
                            model_options={"hidden": 64}))  # fmt: skip
    result = merge("mlp0@-1", "fork@-1")
    assert options(result) == ["--match none --no-repair"]
    assert not [what for what in done if what not in ("none None", "scored")]


@pytest.fixture
def turned(root, tmp_path) -> str:
    """The first network with its units in another order."""
    state = read_checkpoint("mlp0@-1", root)
    inputs = Partitions(Digits(), Split(1)).load(0, 0).train.inputs[:2]
    units = find_units(Mlp((1, 8, 8), 10, hidden=64), (inputs,))
    order = units.random(torch.Generator().manual_seed(5))
    write_checkpoint(tmp_path / "turned.safetensors", units.permute(state, order))
    return str(tmp_path / "turned.safetensors")


def test_a_permuted_copy_needs_weights_alone(root, merge, turned, done) -> None:
    result = merge("mlp0@-1", turned, max_barrier=1e-6, out=str(Path(turned).with_name("out.pt")), name="back")
    assert result.ladder.chosen.way == Way("weights")
    assert matched(result) == [("none", False), ("weights", False)]
    assert result.ladder.chosen.barrier == pytest.approx(0, abs=1e-6)
    found = read_checkpoint(result.out)
    assert all(torch.equal(tensor, found[name]) for name, tensor in read_checkpoint("mlp0@-1", root).items())
    assert {what for what in done if what != "scored"} == {"none None", "weights None"}


def test_networks_trained_apart_are_within_the_bound_where_their_mean_is_not(merge) -> None:
    wanted = merge(*MLPS, match="weights", repair=False)
    result = merge(*MLPS, max_barrier=wanted.barriers["merged"])
    assert matched(result) == [("none", False), ("weights", False)]
    assert result.ladder.reached
    assert result.ladder.rungs[0].barrier > result.ladder.bound == result.ladder.chosen.barrier
    assert result.run.digest == wanted.run.digest
    assert result.scores == wanted.scores
    assert result.paths == wanted.paths


def test_the_bound_is_a_tenth_of_the_parents_loss(merge) -> None:
    result = merge(*MLPS)
    parents = [result.scores[f"parent {place}"].loss for place in MLPS]
    assert result.ladder.bound == pytest.approx(0.1 * sum(parents) / 2)
    assert all(r.barrier is None or r.barrier > result.ladder.bound for r in result.ladder.rungs[:-1])


@pytest.fixture(scope="module")
def whole(merge) -> MergeResult:
    """No way of these is good enough, so all are tried."""
    return merge(*CNNS, max_barrier=0, name="whole")


def test_where_no_way_is_good_enough_the_best_is_taken_and_it_is_said(whole) -> None:
    ladder = whole.ladder
    assert len(ladder.rungs) == 11
    assert not ladder.reached
    assert ladder.chosen.barrier == min(rung.barrier for rung in ladder.rungs if rung.barrier is not None)
    assert ladder.reason.startswith("no way reached the bound of 0.0000")
    assert whole.run.round(1).score == ladder.chosen.score
    assert whole.summary()["ladder"]["reached"] is False


def test_networks_are_observed_once_and_matched_once_in_each_way(merge, done) -> None:
    result = merge(*CNNS, max_barrier=0)
    assert len(result.ladder.rungs) == 11
    scored = done.pop("scored")
    once = ("observed", "none None", "weights None", "activations None", "mixed None", "mixed 3")
    assert done == dict.fromkeys(once, 1)
    # The parents, the ensemble, the plain mean and the middle of its path; for each of four more matchings a mean
    # and a path of three points; for each of all five the same, repaired. The best point is scored already.
    assert scored == 5 + 4 * 4 + 5 * 4


def test_after_it_stopped_nothing_is_done(merge, done, whole) -> None:
    second = whole.ladder.rungs[1].barrier
    assert second < whole.ladder.rungs[0].barrier
    result = merge(*CNNS, max_barrier=second)
    assert matched(result) == [("none", False), ("weights", False)]
    # The parents, the ensemble, the plain mean and the middle of its path; the other path and its mean.
    assert done == {"none None": 1, "weights None": 1, "scored": 5 + 4}


def test_a_barrier_is_that_of_the_path_which_the_fixed_options_give(merge, whole) -> None:
    for found in whole.ladder.rungs[:8]:
        fixed = merge(*CNNS, match=found.way.match, repair=found.way.repair)
        kind = "merged, repaired" if found.way.repair else "merged"
        assert found.barrier == fixed.barriers[kind]
        assert found.score == fixed.scores[kind]


def test_a_path_of_its_ends_alone_hides_no_rise(merge, whole) -> None:
    result = merge(*CNNS, max_barrier=0, points=2)
    for found, wanted in zip(result.ladder.rungs[:8], whole.ladder.rungs[:8], strict=True):
        ends = [score.loss for score in (whole.paths["plain mean"][0], whole.paths["plain mean"][-1])]
        rise = max(0.0, found.score.loss - sum(ends) / 2)
        assert found.score.loss == pytest.approx(wanted.score.loss, rel=1e-6)
        assert found.barrier >= rise - 1e-9
    assert result.ladder.rungs[0].barrier > 0


def test_the_best_point_is_measured_where_it_is(merge, whole) -> None:
    best = next(rung for rung in whole.ladder.rungs if rung.way.average == "best")
    fixed = merge(*CNNS, match=best.way.match, repair=best.way.repair, average="best")
    assert best.score == list(fixed.scores.values())[-1]
    first, last = (fixed.scores[f"parent {place}"].loss for place in CNNS)
    there = fixed.coefficients[1]
    if there in (0, 1):
        assert best.barrier is None
    else:
        assert best.barrier == pytest.approx(max(0, best.score.loss - (first + (last - first) * there)))


def test_three_networks_are_compared_with_the_mean_of_their_parents(merge) -> None:
    result = merge(*MLPS, "mlp2@-1", max_barrier=0.1)
    parents = [result.scores[f"parent mlp{i}@-1"].loss for i in range(3)]
    for found in result.ladder.rungs:
        assert found.barrier == pytest.approx(max(0, found.score.loss - sum(parents) / 3))
    assert result.ladder.reached
    assert matched(result) == [("none", False), ("weights", False)]
    assert result.paths == {}
    fixed = merge(*MLPS, "mlp2@-1", **fixed_fields(result))
    assert fixed.run.digest == result.run.digest
    weighed = merge(*MLPS, "mlp2@-1", coefficients=(2, 1, 1), max_barrier=10)
    line = (2 * parents[0] + parents[1] + parents[2]) / 4
    assert weighed.ladder.chosen.barrier == pytest.approx(weighed.ladder.chosen.score.loss - line)


# What is told can be repeated.


def fixed_fields(result: MergeResult) -> dict[str, object]:
    way = result.ladder.chosen.way
    return {"match": way.match, "repair": way.repair, "average": way.average, "soft": way.soft}


def test_the_recorded_options_give_the_same_bits(capsys, root, merge, whole) -> None:
    common = ["--points", "3", "--examples", "400", "--executor", "inline", "--root", str(root)]
    for number, bound in enumerate(sorted({r.barrier for r in whole.ladder.rungs if r.barrier is not None})):
        result = merge(*CNNS, max_barrier=bound)
        told = RoundStore(result.run.address).attributes["ladder"]
        name = f"repeated{number}"
        given = [*shlex.split(told["chosen"]), "--name", name]
        assert in_process.run(capsys, "merge", *CNNS, *given, *common)[0] == 0
        assert open_run(name, root).digest == result.run.digest


def test_the_run_and_the_file_tell_which_way_was_taken(root, merge, tmp_path) -> None:
    out = tmp_path / "merged.safetensors"
    result = merge(*MLPS, out=str(out), name="told")
    row = result.ladder.row()
    assert row["chosen"] == result.ladder.chosen.way.options
    assert [each["options"] for each in row["tried"]] == options(result)
    assert set(row["tried"][0]) >= {"match", "repair", "barrier", "loss", "accuracy", "seconds"}
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt", "what transformers looks for"
    assert json.loads(metadata["merge"]) == row
    assert result.summary()["ladder"] == row
    config = open_run("told", root).config
    assert config["match"] == result.ladder.chosen.way.match
    assert config["repair"] is result.ladder.chosen.way.repair
    fixed = merge(*MLPS, out=str(tmp_path / "fixed.safetensors"), **fixed_fields(result))
    with safe_open(fixed.out, "pt") as file:
        assert not file.metadata()
    assert fixed.ladder is None


def test_on_a_cluster_it_is_the_same(merge) -> None:
    inline = merge(*MLPS, max_barrier=0.03)
    cluster = merge(*MLPS, max_barrier=0.03, executor="graph", workers=2)
    assert cluster.run.digest == inline.run.digest
    assert without_seconds(cluster.ladder) == without_seconds(inline.ladder)
    assert list(cluster.scores.items()) == list(inline.scores.items())


def test_the_way_that_was_taken_goes_on_in_rounds(merge, tmp_path) -> None:
    out = tmp_path / "last.safetensors"
    result = merge(*MLPS, rounds=1, joint=1, out=str(out), name="onward")
    fixed = merge(*MLPS, rounds=1, **fixed_fields(result))
    assert result.rounds.digest == fixed.rounds.digest
    assert list(result.scores)[-2:] == ["after 1 round", "one, on all data"]
    with safe_open(out, "pt") as file:
        assert file.metadata()["rounds"] == "1"


# What is refused.


def test_without_examples_nothing_can_be_compared(root, merge, tmp_path) -> None:
    write_checkpoint(tmp_path / "a.pt", read_checkpoint("mlp0@-1", root))
    place = str(tmp_path / "a.pt")
    with pytest.raises(UsageError, match="match auto needs examples; give --data"):
        merge(place, place, model="mlp", model_options={"hidden": 64}, input="2x1x8x8")
    with pytest.raises(UsageError, match="no examples are held out; give --held-out"):
        merge(*MLPS, held_out=0)


@pytest.mark.parametrize("fields", [{"soft": 2}, {"metric": "cosine"}, {"average": "best"}])
def test_what_it_finds_itself_is_not_given(merge, fields) -> None:
    with pytest.raises(UsageError, match="match auto finds metric, soft and average itself"):
        merge(*MLPS, **fields)


@pytest.mark.parametrize("bound", [-1, float("nan"), float("inf")])
def test_a_bound_is_a_number(merge, bound) -> None:
    with pytest.raises(UsageError, match="max_barrier = "):
        merge(*MLPS, max_barrier=bound)


def test_a_bound_is_for_auto_alone(merge) -> None:
    with pytest.raises(UsageError, match="max_barrier is where match = auto stops"):
        merge(*MLPS, match="weights", max_barrier=0.1)
