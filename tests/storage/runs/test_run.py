"""The notebook's view: what it shows is what was committed, and looking needs no more than a path."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from roundweave.flows.stored import Run, open_stored
from roundweave.storage.errors import NotARun, RoundFailed, RoundMissing, TensorMissing, UsageError
from roundweave.storage.rounds.commits import Score
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.splits import split_record
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.figures import Plots
from roundweave.storage.runs.listing import list_runs, looked_through
from roundweave.storage.values.digests import state_digest, tensor_digests
from roundweave.storage.values.tensors import views
from tests.storage.conftest import contents, lengthened

COUNTS = ("examples", "accepted", "refused", "absent", "left_out")


class Net(nn.Module):
    """A network of the tiny run's tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3, bias=False)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.fc.weight
        self.scale = nn.Parameter(torch.zeros(()))
        self.coarse = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
        self.norm = nn.Module()
        self.norm.register_buffer("mean", torch.zeros(2))
        self.norm.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.zeros(3, dtype=torch.bool))
        self.table = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
        self.shift = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)


@pytest.fixture
def run(tiny) -> Run:
    return Run(tiny.train(tiny.create(), 2).path)


WRONG = [
    (lambda run: run["fc.wieght"], "run tiny stores no tensor 'fc.wieght'; did you mean fc.weight?"),
    (lambda run: run["zzzzz"], "stores no tensor 'zzzzz'; it has params/fc.weight, params/scale"),
    *((lambda run, name=name: run[name], "is no name of a tensor; run.tensors lists them") for name in (3, None)),
    (lambda run: run.round(1).tensor("scale"), "no tensor 'scale'; there are params/fc.weight, params/scale"),
    (lambda run: run.round(1).updates["x"], "no parameter 'x'; there are fc.weight, scale, coarse"),
    (lambda run: run.round("x"), "'x' is no round; give its number, -1 for the last, last or best"),
    (lambda run: run.round(1.5), "'1.5' is no round"),
    (lambda run: run.best(3), "no score 3; there are loss"),
    (lambda run: run.round(0).updates["scale"], "round 0 has no updates"),
    (lambda run: run.round(3), "it has rounds 0 to 2"),
    (lambda run: run.round(-4), "it has rounds 0 to 2"),
    (lambda run: run.round(-1).owners, "has no split: partitions brought their own"),
]


@pytest.mark.parametrize(("ask", "said"), WRONG, ids=[said[:30] for _, said in WRONG])
def test_what_there_is_not_is_told_in_one_line(run, ask, said) -> None:
    with pytest.raises((TensorMissing, RoundMissing, UsageError), match=re.escape(said)) as error:
        ask(run)
    assert "\n" not in str(error.value)


def test_the_history_is_weighted_by_the_accepted_examples(tiny) -> None:
    """Weights are 10 and 11, losses round and round + 1; round 2 refuses partition 0, round 3 has no score."""
    history = tiny.run({}, {"refused": (0,)}, {"score": None, "seconds": 0.25}, rounds=4).history()
    assert history.index.tolist() == [0, 1, 2, 3]
    assert history.index.name == "round"
    np.testing.assert_array_equal(history["loss"], [np.nan, 1.0, 0.5, np.nan])
    np.testing.assert_array_equal(history["accuracy"], [np.nan, 0.25, 0.5, np.nan])
    np.testing.assert_array_equal(history["seconds"], [0.0, 2.0, 2.0, 0.25])
    wanted = [np.nan, (10 * 1 + 11 * 2) / 21, 3.0, (10 * 3 + 11 * 4) / 21]
    np.testing.assert_allclose(history["train_loss"], wanted, rtol=1e-15)
    assert history["examples"].tolist() == [0, 21, 11, 21]
    assert history["accepted"].tolist() == [0, 2, 1, 2]


def test_who_reports_no_loss_or_takes_no_part_does_not_count_as_a_loss_of_zero(tiny) -> None:
    reported = {0: {}, 1: {"train_loss": 2.0}}, {0: {}, 1: {}}, {1: {"train_loss": 8.0}}
    history = tiny.run(*({"metrics": losses} for losses in reported)).history()
    np.testing.assert_array_equal(history["train_loss"], [np.nan, 2.0, np.nan, 8.0])
    assert history.loc[3, ["examples", "accepted"]].tolist() == [11, 1]


def test_a_rounds_parameters_and_updates_are_shown_by_parameter(tiny, run) -> None:
    params, updates = run.round(1).params, run.round(2).updates
    assert list(params) == list(updates) == ["fc.weight", "scale", "coarse"]
    assert params["scale"].item() == tiny.state(1).params["float32"][6].item()
    array = updates["fc.weight"]
    assert array.dims == ("partition", "fc.weight.0", "fc.weight.1")
    for partition in (0, 1):
        named = views(tiny.schema.layout.params, tiny.update(2, partition).direction)
        assert np.array_equal(array.sel(partition=partition), named["fc.weight"].numpy())
        coarse = named["coarse"].to(torch.float32).numpy()
        assert np.array_equal(updates["coarse"].sel(partition=partition), coarse)


def test_refused_updates_are_named_and_left_out(tiny, same) -> None:
    round = tiny.run({"refused": (0,)}).round(1)
    assert round.refused == {0: "not sound"}
    assert round.updates["scale"]["partition"].values.tolist() == [1]
    assert same(round.update(0), tiny.update(1, 0))


def test_rounds_are_counted_from_either_end(run) -> None:
    assert [run.round(k).number for k in (0, 1, 2, -1, -2, -3)] == [0, 1, 2, 2, 1, 0]


def test_a_round_loads_into_a_fresh_network(tiny, run) -> None:
    network = run.round(2).load_into(Net())
    state = tiny.state(2)
    assert torch.equal(network.fc.weight.detach().reshape(-1), state.params["float32"][:6])
    assert network.head.weight is network.fc.weight
    assert torch.equal(network.coarse.detach(), state.params["bfloat16"])
    assert torch.equal(network.norm.count.reshape(1), state.buffers["int64"])
    assert torch.equal(network.mask, state.buffers["bool"])
    assert torch.equal(network.table.detach().reshape(-1), state.frozen["float32"])


def test_the_status_follows_the_store(tiny) -> None:
    store = tiny.create(rounds=2)
    run = Run(store.path)
    assert (run.status, run.done, run.rounds) == ("interrupted", 0, 2)
    with hold_lease(store.place, "t"):
        assert run.refresh().status == "running"
        store.commit(tiny.write(store, 1))
    assert (run.refresh().status, run.done) == ("interrupted", 1)
    with pytest.raises(RoundFailed), hold_lease(store.place, "t"):
        raise RoundFailed("no sound update")
    assert (run.refresh().status, run.failure) == ("failed", "no sound update")
    with hold_lease(store.place, "t"):
        store.commit(tiny.write(store, 2))
    assert (run.refresh().status, run.digest) == ("complete", store.log.read(2).state)


def test_a_run_that_stopped_early_is_complete(tiny) -> None:
    run = tiny.run({"stop": "target reached"}, rounds=9)
    assert (run.status, run.stop, run.done) == ("complete", "target reached", 1)


def test_runs_are_listed_the_oldest_first_and_other_folders_are_passed_over(tiny) -> None:
    for name, created in (("b", 2.0), ("a", 3.0), ("c", 1.0)):
        tiny.create(name, created=created)
    (tiny.folder / "other.zarr").mkdir()
    for table in (list_runs(tiny.folder), list_runs()):
        assert table[table["error"].isna()].index.tolist() == ["c", "b", "a"]
        assert "is not a run of Roundweave" in table["error"]["other"]
    assert list_runs(tiny.folder / "nowhere").empty


def test_a_damaged_run_does_not_hide_the_others(tiny) -> None:
    tiny.create("sound")
    path = tiny.create("broken").path / "zarr.json"
    path.write_text(path.read_text().replace("fed_avg", "fed_avf"))
    assert list_runs()["status"].to_dict() == {"sound": "interrupted", "broken": "damaged"}
    assert list(looked_through()) == ["sound", "broken"]
    assert "attributes in zarr.json" in str(looked_through(tiny.folder)["broken"])


def test_a_run_is_opened_by_name_or_path_and_is_the_same_where_it_was_moved(tiny, monkeypatch, same) -> None:
    path = tiny.train(tiny.create(), 1).path
    digest = Run(path).digest
    for name, root in (("tiny", None), ("tiny", tiny.folder), (path, None), (str(path), "nowhere")):
        assert open_stored(name, root).path.samefile(path)
    monkeypatch.chdir(tiny.folder)
    assert open_stored("tiny.zarr", "nowhere").name == "tiny"
    path.rename(path.with_name("moved.zarr"))
    assert open_stored("moved").digest == digest
    assert same(open_stored("moved").round(1).state, tiny.state(1))


def test_a_run_that_is_not_there_is_told_with_those_that_are(tiny) -> None:
    with pytest.raises(NotARun, match=r"no run 'tiny' under .*; there are none"):
        open_stored("tiny", tiny.folder)
    path = tiny.create().path
    (tiny.folder / "empty.zarr").mkdir()
    here = f"is not a run of Roundweave; it holds empty, tiny; name one, as {path.with_name('empty.zarr')}"
    round = "a round; name its run, tiny, and the round by --round if"
    told = {"tinny": "did you mean tiny?", "zzz": "there are empty, tiny", tiny.folder: here}
    told |= {"empty": "is not a run of Roundweave", "tiny@3": round, "tiny@-1": round, "tiny@best": round}
    for name, said in told.items():
        with pytest.raises(NotARun, match=re.escape(said)):
            open_stored(name, tiny.folder)


def test_the_examples_of_a_partition_are_those_of_the_rounds_split(tiny) -> None:
    store = tiny.create()
    owners = np.array([[0, -1, 1, 0], [1, 1, -1, 0]], np.int32)
    for number in (0, 1):
        store.splits.write(number, owners.__getitem__)
    for round in (1, 2, 3):
        number = (round - 1) // 2
        store.commit(tiny.write(store, round, split=split_record(number, owners[number])))
    run = Run(store.path)
    told = {round: run.round(round).owners.tolist() for round in (1, 2, 3, -1)}
    assert told == {1: [0, -1, 1, 0], 2: [0, -1, 1, 0], 3: [1, 1, -1, 0], -1: [1, 1, -1, 0]}
    with pytest.raises(RoundMissing, match=r"round 0 of .* has no split"):
        run.round(0).owners  # noqa: B018


def test_looking_never_writes(run) -> None:
    before = contents(run.path)
    Plots(run).history(), str(run), run.status, run["scale"].values, run.round(2).state, run.round(1).update(1)
    assert contents(run.path) == before


# What is read, and when.


def test_the_history_has_a_column_for_every_metric_and_score(tiny) -> None:
    """Weights 10 and 11; partition 0 of round 2 is refused, so what it alone reports is not told."""
    one, score = {"grad norm": 1.0, "only": 5.0, "own_gain": 1.0}, Score(0.5, {"f1": 0.75}, 8)
    told = [{0: one, 1: {"grad norm": norm, "own_gain": 3.0}} for norm in (1.0, 2.0)]
    rounds = {"metrics": told[0], "score": score}, {"metrics": told[1], "score": score, "refused": (0,)}
    history = tiny.run(*rounds).history()
    assert list(history) == ["loss", "f1", "seconds", "grad norm", "only", "own_gain", *COUNTS]
    np.testing.assert_array_equal(history["f1"], [np.nan, 0.75, 0.75])
    np.testing.assert_array_equal(history["grad norm"], [np.nan, 1.0, 2.0])
    np.testing.assert_array_equal(history["only"], [np.nan, 5.0, np.nan])
    assert history["own_gain"][1] == pytest.approx((10 * 1 + 11 * 3) / 21)
    assert history[["accepted", "refused"]].values.tolist() == [[0, 0], [2, 0], [1, 1]]


def test_a_metric_with_the_name_of_another_column_is_told_apart(tiny) -> None:
    told = {"loss": 3.0, "map_loss": 4.0, "accuracy": 5.0, "seconds": 6.0, "weight": 7.0, "examples": 8.0}
    row = tiny.run({"metrics": {1: told}}).history().loc[1]
    assert row[["loss", "accuracy", "seconds", "examples", "accepted"]].tolist() == [1.0, 0.25, 2.0, 11, 1]
    others = ["map_map_loss", "map_loss", "map_accuracy", "map_seconds", "map_weight", "map_examples"]
    assert row[others].tolist() == [*told.values()]


def test_a_run_without_scores_has_a_history_and_a_plot(tiny) -> None:
    run = tiny.run({"score": None})
    assert list(run.history()) == ["loss", "seconds", "train_loss", *COUNTS]
    assert np.isnan(run.history()["loss"]).all()
    assert len(Plots(run).history().figure.axes) == 1


def test_a_view_stays_as_it_was_until_it_is_refreshed(tiny, run, same) -> None:
    """A notebook keeps its view while the run is resumed with more rounds."""
    before = run.done, run.status, run.digest, len(run["scale"]), run.rounds
    history, store = run.history(), lengthened(RoundStore(run.path), 4)
    for round in (3, 4):
        store.commit(tiny.write(store, round, score=Score(0.5, {"new": 1.0}, 8)))
    with pytest.raises(RoundFailed), hold_lease(store.place, "t"):
        raise RoundFailed("later")
    assert (run.done, run.status, run.digest, len(run["scale"]), run.rounds) == before
    assert run.history().equals(history)
    with pytest.raises(RoundMissing, match="it has rounds 0 to 2"):
        run.round(3)
    assert run.refresh() is run
    assert (run.done, run.rounds, len(run.history()), len(run["scale"])) == (4, 4, 5, 5)
    assert same(run.round(3).state, tiny.state(3))
    assert run.failure == "later"


# What is missing or damaged is never shown as something else.


def indexes(size: int) -> st.SearchStrategy[object]:
    """Numbers, slices and lists that index an axis; xarray cannot take an empty slice backwards."""
    numbers, slices = st.integers(-size, size - 1), st.slices(size).filter(lambda part: (part.step or 1) > 0)
    return numbers | slices | st.lists(numbers, max_size=3)


def test_parts_of_a_tensor_are_those_of_the_whole(run) -> None:
    whole = run["fc.weight"].load()

    @given(rows=indexes(3), first=indexes(3), second=indexes(2))
    @settings(max_examples=30)
    def parts(rows: object, first: object, second: object) -> None:
        assert run["fc.weight"][rows, first, second].identical(whole[rows, first, second])

    parts()


def test_a_complete_run_stays_so_whatever_happens_to_a_later_writer(tiny) -> None:
    store = tiny.train(tiny.create(rounds=1), 1)
    with pytest.raises(RoundFailed), hold_lease(store.place, "t"):
        raise RoundFailed("the cluster is gone")
    run = Run(store.path)
    assert (run.status, run.failure) == ("complete", "the cluster is gone")


def test_what_partitions_keep_after_a_round_is_of_the_updates_that_it_came_with(tiny, same) -> None:
    run = tiny.run({}, {"carry_from": {0: 1, 1: 2}})
    carried = run.carried(2)
    assert carried.keys() == {0, 1}
    assert same(carried[0].carry, tiny.update(1, 0).carry)
    assert same(carried[1].carry, tiny.update(2, 1).carry)
    assert run.carried(1) == {}


# A run that is written at this moment.

ROUNDS = 12


def assert_whole(tiny, run: Run, seen: int) -> None:
    """All that is shown up to a round is of one moment, and is what was written."""
    assert len(run.history()) == len(run["fc.weight"]) == len(run.ds["round"]) == seen + 1
    assert run.history()["loss"][1:].tolist() == [1 / round for round in range(1, seen + 1)]
    digests = tensor_digests(tiny.state(seen).named(tiny.schema.layout))
    assert run.digest == state_digest(digests, seen)
    assert tensor_digests(run.round(-1).state.named(tiny.schema.layout)) == digests
    repr(run), str(run)


def test_a_refreshed_view_follows_a_running_writer(tiny) -> None:
    """It writes the first round once the run was seen without one."""
    store, go_on, seen = tiny.create(rounds=ROUNDS), threading.Event(), [0]

    def write() -> None:
        with hold_lease(store.place, "writer"):
            go_on.wait()
            for round in range(1, ROUNDS + 1):
                store.commit(tiny.write(store, round))

    writer, run = threading.Thread(target=write), Run(store.path)
    writer.start()
    while run.refresh().status != "running":
        pass
    assert_whole(tiny, run, 0)
    go_on.set()
    while seen[-1] < ROUNDS:
        seen.append(run.refresh().done)
        assert_whole(tiny, run, seen[-1])
    assert seen == sorted(seen)
    writer.join()
    assert run.refresh().status == "complete"
