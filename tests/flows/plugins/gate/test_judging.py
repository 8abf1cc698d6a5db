"""Gates and aliases: nights that are accepted or rejected, and the champion that they become."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import roundweave as rw
from roundweave.flows.planning.naming import find
from roundweave.flows.plugins.gate.giving import give_by_hand
from roundweave.flows.plugins.gate.judging import give
from roundweave.storage.errors import CodeError, NotARun, StoreDamaged, UsageError
from roundweave.storage.rounds.commits import JUDGEMENT, section_key
from roundweave.storage.runs.names import alias_history, give_alias, holder_of, person
from roundweave.storage.values.hashing import json_digest
from tests.flows.command.in_process import run as command
from tests.flows.command.in_process import said, told
from tests.flows.nights import night, trained
from tests.test_docs import HERE, blocks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def gates(own) -> str:
    """A file of the user's with functions that judge."""
    return own(GATE, "gates")


def test_a_run_is_accepted_if_all_conditions_hold() -> None:
    run = trained(name="a", accept="accuracy >= 0.05, loss < 10")
    loss, accuracy = run.history().iloc[-1][["loss", "accuracy"]]
    assert run.status == "complete"
    assert run.judgement.reasons == [f"accuracy >= 0.05: {accuracy:.6g}", f"loss < 10: {loss:.6g}"]
    rejected = trained(name="b", accept=["accuracy >= 0.05", "loss < 0.001"])
    assert rejected.status == "rejected"
    assert rejected.judgement.reasons[1] == f"loss < 0.001: {loss:.6g}, which is not enough"
    assert rejected.digest == run.digest
    assert rejected.replay("all").identical
    assert rw.open_run("b").verify().sound


CONDITIONS = {
    "loss <= parent": False,
    "loss > parent": True,
    "accuracy >= parent": False,
    "accuracy >= parent - 1": True,
    "loss <= parent + 1e9": True,
    "loss<=parent+.001": False,
}
"""Of a network that is worse than its parent's, and which of them it meets."""


def test_a_parent_is_compared_on_the_same_examples() -> None:
    trained(name="good", rounds=6)
    run = trained(name="bad", start_from="good@-1", lr=30.0, seed=3, accept=[*CONDITIONS])
    assert run.round(-1).score.loss > run.round(0).score.loss  # of the same rows, by its network and its parent's
    met = ["which is not enough" not in reason for reason in run.judgement.reasons]
    assert (run.status, met) == ("rejected", [*CONDITIONS.values()])


GATE = """
def narrow(run):
    return True

def wrong(run, parent):
    return 3

def fails(run, parent):
    return 1 / 0
"""


@pytest.mark.parametrize(
    ("gate", "says"),
    [("wrong", "must return True, False or why not, not int"), ("fails", "fails failed with Zero")],
)
def test_a_run_whose_gate_fails_is_failed(gates, gate: str, says: str) -> None:
    with pytest.raises(CodeError, match=says):
        trained(name="a", accept=f"{gates}:{gate}")
    assert rw.open_run("a").status == "failed"


def test_a_run_that_was_killed_before_it_was_judged_is_not_complete(root) -> None:
    run = trained(name="night-1", accept="loss < 9", promote="champion")
    run.path.joinpath(section_key(JUDGEMENT, 2)).unlink()
    assert run.refresh().status == "interrupted"
    assert find(night(name="night-2", start_from="night-*@-1"))[0].start_from is None
    again = trained(name="night-1", accept="loss < 9", promote="champion")
    assert again.status == "complete"
    assert [each.run for each in alias_history(root, "champion")] == ["night-1"]


def test_a_judgement_that_was_changed_is_none_and_verify_names_it() -> None:
    run = trained(name="a", accept="loss < 0")
    file = run.path / section_key(JUDGEMENT, 2)
    file.write_text(file.read_text().replace("false", "true"))
    assert run.refresh().status == "interrupted"
    assert [f"{each}" for each in run.verify().findings] == [
        f"{section_key(JUDGEMENT, 2)}: it is not what was said of the round that is recorded"
    ]


def test_a_run_that_is_extended_is_judged_again() -> None:
    fields = {"name": "a", "on_complete": "extend"}
    assert trained(**fields, accept="loss < 0").status == "rejected"
    longer = trained(**fields, accept="loss < 9")
    assert (longer.done, longer.status) == (4, "complete")
    assert longer.verify().sound


def test_nights_become_champions_only_if_they_are_accepted(root, capfd) -> None:
    nightly = {"start_from": "champion@-1", "accept": "loss <= parent", "promote": "champion"}
    first = trained(name="night-1", **nightly)
    assert "no run is champion under" in capfd.readouterr().err
    bad = trained(name="night-2", lr=30.0, seed=3, **nightly)
    third = trained(name="night-3", **nightly)
    assert [run.status for run in (first, bad, third)] == ["complete", "rejected", "complete"]
    assert [run.parent for run in (first, bad, third)] == [None, "night-1@2", "night-1@2"]
    assert [each.run for each in alias_history(root, "champion")] == ["night-1", "night-3"]
    assert rw.open_run("champion").name == "night-3"
    assert rw.fork("champion@best").start_from.reference.endswith("night-3.zarr@2")
    longer = trained(name="night-3", rounds=3, **nightly)  # it keeps what it began with
    assert (longer.done, longer.parent) == (3, "night-1@2")


def test_a_run_that_began_with_a_former_champion_does_not_follow_a_later_one(root, capfd) -> None:
    trained(name="a", promote="champion")
    trained(name="b", start_from="champion@-1", promote="champion")
    trained(name="c", start_from="a@-1", promote="champion")
    says = "c does not become champion: it began with a@2, and b@2 followed since, with which nothing compares it"
    assert says in capfd.readouterr().err
    assert holder_of(root, "champion") == "b"
    trained(name="d", promote="champion")  # it began with no champion
    assert holder_of(root, "champion") == "d"


def test_one_that_is_better_than_both_on_validation_data_follows_the_later_champion(root, capfd) -> None:
    validated = {"validation": "digits", "accept": "validation_loss <= parent", "promote": "champion"}
    trained(name="a", **validated)
    trained(name="b", start_from="champion@-1", **validated, rounds=4)
    trained(name="worse", start_from="a@-1", **validated, rounds=3)
    losses = [rw.open_run(name).round(-1).score.values["validation_loss"] for name in ("worse", "b")]
    says = "worse does not become champion: beside b it falls short: validation_loss <= parent: "
    assert f"{says}{losses[0]:.6g}, the champion's is {losses[1]:.6g}" in capfd.readouterr().err
    trained(name="better", start_from="a@-1", **validated, rounds=6)
    assert holder_of(root, "champion") == "better"


VALIDATED = {"validation": "digits", "accept": "validation_loss <= champion", "promote": "champion"}


def validation_loss(name: str) -> float:
    return rw.open_run(name).round("last").score.values["validation_loss"]


def test_a_champion_is_the_one_at_the_end_of_the_night_whatever_its_network(root) -> None:
    """Neither night began with the other; a network of one kind is compared with one of another kind."""
    trained(name="good", **VALIDATED, rounds=6)
    bad = trained(name="bad", **VALIDATED, model="mlp", rounds=1)
    losses = validation_loss("bad"), validation_loss("good")
    assert bad.judgement.reasons == [
        f"validation_loss <= champion: {losses[0]:.6g}, the champion's is {losses[1]:.6g}, which is not enough"
    ]
    assert (bad.status, holder_of(root, "champion")) == ("rejected", "good")
    better = trained(name="better", **VALIDATED, model="mlp", rounds=12, local_steps=20)
    assert validation_loss("better") < losses[1]
    assert (better.status, holder_of(root, "champion")) == ("complete", "better")


def test_a_number_alone_lets_nobody_worse_take_the_alias(root, capfd) -> None:
    fields = {"accept": "accuracy >= 0.1", "promote": "champion"}
    trained(name="good", **fields, rounds=6)
    bad = trained(name="bad", **fields, rounds=1)
    assert (bad.status, holder_of(root, "champion")) == ("complete", "good")
    assert "bad does not become champion: beside good it falls short: accuracy >= 0.1: " in capfd.readouterr().err


def test_the_best_round_is_judged_and_handed_out_where_there_is_a_best(root, capfd) -> None:
    run = trained(name="a", best="loss", lr=50.0, local_steps=5, rounds=6, accept="loss < 99", promote="champion")
    best = run.best().number
    assert 0 < best < 6
    assert run.judgement.round == best
    assert [(each.run, each.round) for each in alias_history(root, "champion")] == [("a", best)]
    assert rw.open_run("champion").done == best
    child = trained(name="b", start_from="champion@-1")
    assert child.parent == f"a@{best}"
    assert child.round(0).tensors["1.weight"].equal(run.round(best).tensors["1.weight"])


def test_a_champion_that_goes_on_and_is_rejected_stays_the_round_that_it_was(root) -> None:
    run = trained(name="a", accept="loss < 9", promote="champion", keep="last:1")
    weights = run.round(2).tensors["1.weight"]
    assert trained(name="a", accept="loss < 0", rounds=4, keep="last:1").status == "rejected"
    champion = rw.open_run("champion")
    assert (champion.status, champion.done, repr(champion)[:32]) == (
        "complete",
        2,
        "<Run a · complete · 2/2 rounds ·",
    )
    assert champion.round("last").tensors["1.weight"].equal(weights), "the round stays, though its run keeps one"
    assert trained(name="b", start_from="champion@-1").parent == "a@2"


def test_an_alias_whose_run_was_made_anew_names_nothing(root) -> None:
    trained(name="a", promote="champion")
    shutil.rmtree(root / "a.zarr")
    trained(name="a", seed=1)
    with pytest.raises(NotARun, match="champion was a@2, and that round has changed; give it to a run again"):
        rw.open_run("champion")


def test_a_champion_that_nothing_vouches_for_is_still_compared(root) -> None:
    """An alias that was given without a round and a chain, as one of long ago may be."""
    good = trained(name="good", rounds=6)
    give_alias(root, "champion", "good", "long ago", by_hand=False)
    bad = trained(name="bad", accept="loss <= champion", promote="champion", rounds=1)
    assert (bad.status, holder_of(root, "champion")) == ("rejected", "good")
    assert f"the champion's is {good.round(-1).score.loss:.6g}" in bad.judgement.reasons[0]


def test_entries_of_before_are_read(root) -> None:
    """One that says nothing of by whom it was given, with its digest over what it says."""
    run = trained(name="a")
    said = {"number": 1, "run": "a", "round": 2, "chain": run.chain, "why": "x", "since": 1e9, "before": ""}
    (root / ".aliases/champion").mkdir(parents=True)
    file = root / ".aliases/champion/1.json"
    file.write_text(json.dumps(said | {"digest": json_digest(said)}))
    assert rw.open_run("champion").digest == run.digest
    trained(name="b", promote="champion", keep="last:1")
    assert [(each.run, each.by) for each in alias_history(root, "champion")] == [("a", ""), ("b", person())]
    file.write_text(file.read_text().replace('"x"', '"y"'))
    with pytest.raises(StoreDamaged, match="is not what was written"):
        alias_history(root, "champion")


def test_what_cannot_be_compared_is_rejected_in_a_line(root, own) -> None:
    def made(name: str, classes: int, **fields: object) -> rw.Run:
        text = f"import torch\ndef data(): return torch.eye(30), torch.arange(30) % {classes}\n"
        return trained(name=name, data=f"{own(text, name)}:data", promote="champion", **fields)

    made("three", 3)
    other = made("two", 2, accept="loss <= champion")
    assert (other.status, holder_of(root, "champion")) == ("rejected", "three")
    assert "and three cannot be compared: " in other.judgement.reasons[0]
    made("again", 2, accept="loss <= 99")
    assert holder_of(root, "champion") == "three"


def test_a_champion_of_other_columns_is_compared_by_their_names(root, tmp_path) -> None:
    """Columns in another order, or a label less; a label that the champion does not know is the reason."""
    kinds = np.array(["iris", "lily", "rose"])

    def made(name: str, seed: int, columns: str, labels: int, rounds: int) -> rw.Run:
        draw = np.random.default_rng(seed)
        values = draw.standard_normal((90, 3))
        table = pd.DataFrame(values, columns=[*"abc"])[[*columns]].assign(kind=kinds[values[:, :labels].argmax(1)])
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        config = {"data": f"csv:{tmp_path}/{name}.csv", "lr": 0.1, "rounds": rounds, "seed": seed}
        return trained(name=name, **config, accept="loss <= champion", promote="champion")

    first = made("first", 1, "abc", 3, rounds=8)
    turned = made("turned", 2, "cab", 3, rounds=1)
    trained_on = [number for partition in range(2) for number in turned.examples(partition).index]
    held = pd.read_csv(tmp_path / "turned.csv").drop(trained_on)
    inputs, targets = (
        torch.tensor(held[[*"abc"]].to_numpy()).float(),
        torch.tensor(kinds.searchsorted(held["kind"])),
    )
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(first.round(-1).network()(inputs), targets)
    assert f"the champion's is {float(loss):.4f}"[:-1] in turned.judgement.reasons[0]
    assert holder_of(root, "champion") == "first"
    made("fewer", 3, "bca", 2, rounds=60)
    assert holder_of(root, "champion") == "fewer"
    known = made("more", 4, "abc", 3, rounds=1)
    assert "and fewer cannot be compared: it knows no label 'rose', but iris, lily" in known.judgement.reasons[0]


def test_a_first_night_takes_the_alias_back_by_hand_and_its_export_follows(root, own, capsys, tmp_path) -> None:
    """It began with nothing, though its file names a champion to begin with and what to do on the same data."""
    nightly = {"start_from": "champion@-1", "on_unchanged": "skip", "promote": "champion"}
    text = "import torch\ndef data(): return torch.eye(40), torch.arange(40) % 3"
    nightly |= {"export": str(tmp_path / "current"), "accept": "loss < 99"}
    trained(name="first", data=f"{own(text, 'one')}:data", **nightly)
    trained(name="second", data=f"{own(text.replace('% 3', '// 2 % 3'), 'other')}:data", **nightly)
    assert holder_of(root, "champion") == "second"
    said(capsys, "alias", "champion", "first")
    assert (tmp_path / "current/README.md").read_text().splitlines()[1] == "# first, round 2"
    said(capsys, "resume", "first", "--rounds", "3")


def test_a_night_of_which_no_round_is_better_than_its_start_takes_nothing(root, own, capfd, tmp_path) -> None:
    """Its labels are those of other digits; by hand it may have the alias, at round 0, and its export follows."""
    text = "import torch\ndef data(): return torch.eye(30), torch.arange(30) % 3\n"
    wrong = text.replace("arange(30)", "arange(1, 31)")
    fields = {"accept": "validation_loss <= champion", "promote": "champion", "best": "validation_loss", "lr": 0.5}
    fields |= {
        "validation": f"{own(text, 'v')}:data",
        "start_from": "champion@-1",
        "export": str(tmp_path / "now"),
    }
    trained(name="good", data=f"{own(text, 'good')}:data", rounds=6, **fields)
    bad = trained(name="bad", data=f"{own(wrong, 'bad')}:data", **fields)
    assert (bad.result.number, holder_of(root, "champion")) == (0, "good")
    assert "no round of it is better than what it began with" in capfd.readouterr().err
    give_by_hand(root, "champion", "bad", "a person says so")
    assert (tmp_path / "now/README.md").read_text().splitlines()[1] == "# bad, round 0"


def test_what_is_of_one_run_alone_compares_none(root) -> None:
    own = {"split": "shards:2", "score_partitions": 0.2}
    for fields in ({"accept": "worst_loss <= champion"}, {"accept": "worst_loss < 9"}):
        with pytest.raises(
            UsageError, match="by worst_loss, which only a run's own rounds have; compare the loss"
        ):
            trained(name="a", promote="champion", **own, **fields)
    assert trained(name="a", accept="worst_loss < 99", **own).status == "complete"


def test_an_alias_goes_by_hand_to_no_round_whose_network_is_gone(root, capsys, tmp_path) -> None:
    np.savez(tmp_path / "t.npz", inputs=np.eye(30), targets=np.arange(30) % 3)
    trained(name="a", data=f"npz:{tmp_path}/t.npz", keep="last:1", rounds=3)
    (tmp_path / "t.npz").unlink()
    assert "t.npz" in command(capsys, "alias", "champion", "a@1")[2]
    assert holder_of(root, "champion") is None
    said(capsys, "alias", "champion", "a@3")


def test_by_hand_an_alias_is_pinned_approved_and_goes_to_a_round(root, capsys, tmp_path) -> None:
    fields = {"accept": "loss < 9", "promote": "champion", "export": str(tmp_path / "current")}

    def exported() -> str:
        return (tmp_path / "current/README.md").read_text().splitlines()[1]

    trained(name="a", **fields, rounds=3)
    said(capsys, "alias", "champion", "a@2", "--pin", "--why", "round 3 is odd")
    assert exported() == "# a, round 2"
    trained(name="b", **fields, rounds=6)
    assert (holder_of(root, "champion"), exported()) == ("a", "# a, round 2")
    said(capsys, "alias", "champion", "--unpin")
    trained(name="c", **fields, rounds=6, seed=1, approval=True)
    assert "c awaits approval" in command(capsys, "show", "c")[1]
    assert (holder_of(root, "champion"), exported()) == ("a", "# a, round 2")
    said(capsys, "alias", "champion", "c")
    assert exported() == "# c, round 6"
    last = alias_history(root, "champion")[-1]
    assert (last.by_hand, last.by, last.round) == (True, person(), 6)


def test_a_view_of_the_champion_computes_its_own_round(root) -> None:
    run = trained(name="a", accept="loss < 9", promote="champion")
    trained(name="a", accept="loss < 0", rounds=5)
    champion = rw.open_run("champion")
    assert champion.score().score == champion.score("best").score == run.round(2).score
    assert [each.round for each in champion.replay("last").results] == [2]
    assert [each.round for each in champion.replay("all").results] == [1, 2]
    assert [each.round for each in champion.recombine("last", reduce="median").rounds] == [2]


def test_another_alias_leaves_the_champion_s_export_and_a_pin_leaves_the_round(root, capsys, tmp_path) -> None:
    current = tmp_path / "current/README.md"
    trained(
        name="a", promote="champion", export=str(current.parent), best="loss", lr=50.0, local_steps=5, rounds=6
    )
    said(capsys, "alias", "champion", "a@6")
    said(capsys, "alias", "staging", "a@1")
    said(capsys, "alias", "champion", "--pin")
    assert [(each.run, each.round) for each in alias_history(root, "champion")] == [("a", 4), ("a", 6), ("a", 6)]
    assert current.read_text().splitlines()[1] == "# a, round 6"


@pytest.mark.parametrize("by_hand", [False, True])
def test_what_a_former_champion_exported_goes_to_one_that_exports_nothing(capsys, tmp_path, by_hand: bool) -> None:
    current = tmp_path / "current/README.md"
    trained(name="a", promote="champion", export=str(current.parent))
    trained(name="b", rounds=3, **({} if by_hand else {"promote": "champion"}))
    if by_hand:
        said(capsys, "alias", "champion", "b")
    assert current.read_text().splitlines()[1] == "# b, round 3"


def test_an_export_lies_where_it_lay_whichever_folder_the_command_is_in(
    root, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        trained(name=name, promote="champion", export="current")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    said(capsys, "alias", "champion", "a", "--root", str(root))
    assert (tmp_path / "current/README.md").read_text().splitlines()[1] == "# a, round 2"
    assert not [*(tmp_path / "sub").iterdir()]


def test_a_bound_on_the_good_side_compares_nothing(root) -> None:
    fields = {"accept": "loss >= 0.0001, accuracy <= 0.999", "promote": "champion"}
    trained(name="worse", rounds=1, **fields)
    trained(name="better", rounds=6, **fields)
    assert holder_of(root, "champion") == "better"


def test_other_conditions_judge_again(root) -> None:
    assert trained(name="a", accept="accuracy >= 0.01").status == "complete"
    assert trained(name="a", accept="accuracy >= 0.999", promote="champion").status == "rejected"
    assert holder_of(root, "champion") is None
    assert trained(name="a", accept="accuracy >= 0.02", promote="champion").status == "complete"
    assert holder_of(root, "champion") == "a"


def test_by_hand_a_merge_or_a_run_of_another_root_is_no_half_given_alias(root, capsys, tmp_path) -> None:
    trained(name="a", promote="champion")
    trained(name="far", root=str(tmp_path / "other"))
    code, _, err = command(capsys, "alias", "champion", str(tmp_path / "other/far.zarr"))
    assert (code, "copy the run there first" in err) == (2, True)
    rw.merge(rw.MergeConfig(networks=["a@1", "a@2"], name="m"))
    said(capsys, "alias", "champion", "m")
    shutil.rmtree(root / "m.zarr")
    said(capsys, "alias", "champion", "--take-back")
    assert [each.run for each in alias_history(root, "champion")] == ["a", "m", None]


def test_a_function_is_given_the_judged_round_as_the_last(own) -> None:
    gate = own("def gate(run, parent):\n    return f'round {run.round(-1).number} of {run.done}'\n")
    run = trained(name="a", best="loss", lr=50.0, local_steps=5, rounds=6, accept=f"{gate}:gate")
    assert "round 4 of 4" in run.judgement.reasons[0]


def test_by_hand_a_rejected_run_takes_an_alias_only_if_that_is_said(root, capsys) -> None:
    trained(name="a", accept="loss < 0")
    code, _, err = command(capsys, "alias", "champion", "a")
    assert (code, err.splitlines()[-1][:28]) == (2, "error: a is rejected: loss <")
    said(capsys, "alias", "champion", "a", "--anyway")
    assert holder_of(root, "champion") == "a"


def test_what_was_given_by_hand_meanwhile_stays(root, own, capfd) -> None:
    trained(name="a", accept="loss < 9", promote="champion")
    trained(name="b", accept="loss < 9", promote="champion", rounds=4)
    gate = own(f"""
from roundweave.storage.runs.names import give_alias
def gate(run, parent):
    give_alias({str(root)!r}, "champion", "a", "b is bad in production")
    return True
""")
    trained(name="c", accept=f"{gate}:gate", promote="champion", start_from="champion@-1", rounds=6)
    assert holder_of(root, "champion") == "a"
    assert f"c does not become champion: {person()} gave it to a meanwhile (b is bad" in capfd.readouterr().err


def test_what_was_taken_back_is_nobody_s_until_a_person_gives_it(root, capsys) -> None:
    trained(name="a", promote="champion")
    said(capsys, "alias", "champion", "--take-back", "--why", "all are bad")
    trained(name="b", promote="champion")
    assert holder_of(root, "champion") is None
    said(capsys, "alias", "champion", "--unpin")
    trained(name="c", promote="champion")
    assert holder_of(root, "champion") == "c"


PARTS = """
import torch
def part(partition, partitions):
    return torch.randn(60, 3, generator=torch.Generator().manual_seed(partition)), torch.arange(60) % 2
def whole():
    return part(0, 1)
"""


def test_rounds_of_other_examples_are_not_compared(own) -> None:
    """Each round of a cohort is scored on what its partitions hold out."""
    file = own(PARTS)
    fields = {"data": f"{file}:part", "partitions": 4, "cohort": 1, "promote": "champion"}
    for accept in ("loss <= champion", "accuracy >= 0.01"):
        with pytest.raises(
            UsageError, match="compares rounds, and each is scored on what those that it asks hold"
        ):
            trained(name="a", accept=accept, **fields)
    validated = {"validation": f"{file}:whole", "accept": "validation_loss <= champion"}
    assert trained(name="a", **fields, **validated).status == "complete"


@pytest.mark.parametrize("keep", ["last:2", "every:3"])
def test_a_policy_that_may_delete_the_best_round_is_refused(keep: str) -> None:
    with pytest.raises(
        UsageError, match=f"best = loss names a round that keep = {keep} may delete; give keep = st"
    ):
        trained(name="a", promote="champion", best="loss", keep=keep)
    assert trained(name="a", promote="champion", best="loss", keep="updates:2").status == "complete"


def test_a_comparison_with_a_champion_needs_an_alias() -> None:
    with pytest.raises(rw.RoundweaveError, match="accept = loss <= champion needs an alias; give promote"):
        night(accept="loss <= champion")


def test_the_page_s_function_of_a_gate(own) -> None:
    [gate] = [b.text for b in blocks(HERE / "docs/how-to/champion.md") if b.text.startswith("# gates.py")]
    accept = f"{own(gate)}:near_the_parent"
    assert trained(name="a", rounds=4, accept=accept).status == "complete"
    assert trained(name="b", start_from="a@-1", accept=accept).status == "complete"
    worse = trained(name="c", start_from="a@-1", lr=30.0, seed=3, accept=accept)
    assert "is worse than the parent's by more than 2 %" in worse.judgement.reasons[0]


def test_a_function_of_other_arguments_is_refused_before_it_trains(gates) -> None:
    with pytest.raises(UsageError, match=r"gates.py:narrow must be a function of \(run, parent\): too many"):
        trained(name="a", accept=f"{gates}:narrow")
    with pytest.raises(NotARun):
        rw.open_run("a")


def test_names_of_aliases_and_runs_are_apart(root) -> None:
    trained(name="a", promote="champion")
    with pytest.raises(UsageError, match="champion is an alias under"):
        trained(name="champion")
    give_alias(root, "champion", None, "by hand")
    with pytest.raises(NotARun):
        rw.open_run("champion")
    with pytest.raises(UsageError, match="there is a run of that name under"):
        trained(name="b", promote="a")
    with pytest.raises(rw.RoundweaveError, match="chmpion"):
        trained(name="b", start_from="chmpion@-1", promote="champion")


def test_the_command_says_that_a_run_was_rejected_by_exit_code_3(capsys) -> None:
    words = ["--executor", "inline", "--model", "logistic", "--partitions", "2", "--rounds", "2"]
    code, out, err = command(capsys, "train", *words, "--name", "a", "--accept", "loss <= 0", "--json")
    assert (code, json.loads(out.splitlines()[-1])["status"]) == (3, "rejected"), err
    assert "a is rejected: loss <= 0:" in err
    for words in (["show", "a"], ["runs"]):
        assert "rejected" in command(capsys, *words)[1]
    assert command(capsys, "resume", "a")[0] == 3


def test_the_command_shows_gives_and_takes_back(stored, capsys) -> None:
    assert said(capsys, "alias").startswith("no aliases")
    for name in ("four", "plain"):
        stored(name)
    (holding,) = told(capsys, "alias", "champion", "four", "--why", "the only one")
    assert (holding["run"], holding["round"], holding["why"]) == ("four", 4, "the only one")
    said(capsys, "alias", "champion", "plain")
    said(capsys, "alias", "champion", "--take-back")
    assert [each["run"] for each in told(capsys, "alias", "champion")] == ["four", "plain", None]
    assert "nobody" in said(capsys, "alias")


def test_what_no_alias_can_be_is_refused(stored, capsys) -> None:
    run = stored("four")
    for line in ("other", "--take-back", "champion four --take-back", "champion nothing", "four b"):
        code, _, err = command(capsys, "alias", *line.split())
        assert (code in (1, 2), len(err.splitlines()) <= 2) == (True, True), line
    with pytest.raises(UsageError, match="four is a run under"):
        give(run.placed["root"], "four", run, run.round(-1), "by hand")
