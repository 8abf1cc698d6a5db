"""Networks that ranks in processes of their own share: all have the bits of one process, whoever is lost."""

from __future__ import annotations

import pytest
from distributed import Client

from roundweave.flows.stored import open_run
from roundweave.storage.errors import ClusterError, RoundFailed
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.tasks.executors.deeds import DATA, HOT, KILL, STOP, beside, executors, experiment, idle, lines, until

slow = pytest.mark.slow

SOURCE = f"""{DATA}
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.drop, self.out = torch.nn.Linear(3, 7), torch.nn.Dropout(0.3), torch.nn.Linear(7, 2)
    def forward(self, inputs):
        if self.training and hasattr(self.into, "exchange"):
            obey(f"rank-{{self.into.exchange.group.rank}}", self=self)
        return self.out(self.drop(self.into(inputs).relu()))
"""
FIELDS = {"partitions": 3, "rounds": 7, "momentum": 0.5, "ranks": 2}


four = beside(4)


@pytest.fixture
def client(four: Client) -> Client:
    """Of four workers: who was lost before is there again."""
    until(lambda: len(four.nthreads()) == 4)
    return four


@pytest.fixture
def fields(own) -> dict[str, object]:
    return experiment(own, SOURCE) | FIELDS


@pytest.mark.thorough
@pytest.mark.parametrize(("ranks", "networks"), [(2, 2), (1, 4), (3, 1), (4, 1)])
def test_a_group_of_processes_gives_the_bits_of_one_process(equal, client, fields, ranks, networks) -> None:
    run = equal(RanksExecutor(client), 7, **fields | {"ranks": ranks, "outer_momentum": 0.9})
    group = run.round(-1).commit.process_group
    assert (group.ranks, group.sharing) == (min(3, networks) * ranks, ranks)
    assert run.round(-1).commit.executor == "ranks"


def test_a_share_of_a_wide_layer_is_on_each_rank_alone(train, cluster) -> None:
    """Bytes of tensors that cross to the one that writes: all that is cut but its own, of updates and states."""
    fields = {"data": "digits", "algorithm": "sync_sgd", "partitions": 1, "rounds": 3, "held_out": 0, "ranks": 2}
    run = train(RanksExecutor(cluster), 3, model="mlp", **fields)
    cut = 2 * (64 * 256 // 2 + 256 // 2 + 256 * 10 // 2) * 4
    sent = run.round(-1).commit.process_group.exchanged["tensors"]
    assert cut <= sent <= cut + 5000


@pytest.mark.thorough
@pytest.mark.parametrize(("deed", "rank"), [(KILL, 0), (KILL, 1), pytest.param(STOP, 1, marks=slow)])
def test_ranks_that_lose_one_share_the_network_again(equal, client, fields, do, deed, rank, caplog) -> None:
    do(deed, rank, 4, at="rank")
    run = equal(RanksExecutor(client, Setting(worker_timeout=5)), 7, **fields)
    # Of one that is stopped the others may say that it takes long, too.
    assert sum("is lost" in line or "is given up" in line for line in lines(caplog)) == 1
    assert {*executors(run)} == {"ranks"}, "no worker had the whole network"


@pytest.mark.thorough
def test_ranks_wait_for_the_worker_that_they_need(equal, fields, do) -> None:
    """Two workers of their own, both of which they need."""
    do(KILL, 1, 4, at="rank")
    with connect(None, 2) as client:
        run = equal(RanksExecutor(client), 3, **fields)
    assert {*executors(run)} == {"ranks"}


@slow
@pytest.mark.parametrize("losses", [0, 2])
def test_the_partition_at_which_ranks_die_again_and_again_is_named(train, fields, do, monkeypatch, losses) -> None:
    monkeypatch.setattr("roundweave.tasks.executors.ranks.SHARING_LOSSES", losses)
    if not losses:
        monkeypatch.setattr("roundweave.tasks.executors.ranks.SHARING_SECONDS", 2.0)
    do(KILL, 1, 3, at="rank", always=True)
    with connect(None, 2) as client, pytest.raises(ClusterError, match=r"round 4 was lost|workers died"):
        train(RanksExecutor(client), 7, **fields, name="there")
    assert open_run("there").done >= 3


@pytest.mark.thorough
def test_a_rank_of_a_network_that_raises_once_costs_no_bit(equal, client, fields, do) -> None:
    do(HOT, 1, 3, at="rank")
    run = equal(RanksExecutor(client), 3, **fields)
    assert run.round(7).commit.executor == "ranks"


@pytest.mark.thorough
def test_a_rank_of_a_network_that_raises_again_ends_the_run(train, client, fields, do) -> None:
    do(HOT, 1, 3, at="rank", always=True)
    with pytest.raises(RoundFailed, match=r"0 of 3 updates are sound.*: its map failed with ValueError: too hot"):
        train(RanksExecutor(client), 3, **fields, name="there")
    until(lambda: idle(client))
    assert open_run("there").done >= 3


@pytest.mark.thorough
def test_what_one_rank_refuses_all_refuse(train, client, fields, do) -> None:
    """The second rank's share alone is spoilt, at one of three partitions; the reason is of the whole tensor."""
    whole = "self.into.register_forward_hook(lambda *_: torch.zeros(5, 4))"
    do(f"self.into.weight.data.fill_(float('nan')); {whole}", 1, 3, at="rank")
    run = train(RanksExecutor(client), 7, **fields, name="there")
    ((number, refused),) = [(n, run.round(n).refused) for n in range(1, 8) if run.round(n).refused]
    ((partition, reason),) = refused.items()
    assert reason == "direction of into.weight has 12 non-finite of 21 numbers"
    assert run.round(number).commit.accepted == [p for p in range(3) if p != partition]
    assert run["into.weight"].sel(round=7).notnull().all()


@pytest.mark.thorough
def test_ranks_go_on_from_states_that_are_recomputed(train, equal, client, fields) -> None:
    train(RanksExecutor(client), 5, **fields | {"rounds": 5}, name="there")
    equal(RanksExecutor(client), 7, **fields)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ranks": 5}, "5 ranks that share a network need as many workers, of which there are 4"),
        ({"reduce": "trimmed_mean:1"}, "TrimmedMean(f=1) needs whole networks in one place"),
    ],
)
@pytest.mark.thorough
def test_each_has_the_whole_network_where_it_cannot_be_shared(equal, client, fields, caplog, given, says) -> None:
    run = equal(RanksExecutor(client), 3, **fields | {"rounds": 3} | given)
    assert {*executors(run)} == {"graph"}
    assert lines(caplog) == [f"{says}: each has the whole network"]


@pytest.mark.parametrize(("ranks", "by"), [(1, "graph"), (2, "ranks")])
@pytest.mark.thorough
def test_ranks_that_share_a_network_stay(train, client, fields, monkeypatch, ranks, by) -> None:
    """However long their rounds are."""
    monkeypatch.setattr("roundweave.tasks.executors.ranks.SHORT_SECONDS", 0.0)
    run = train(AutoExecutor(client), 3, **fields | {"ranks": ranks, "rounds": 3})
    assert run.round(1).commit.executor == by


WIDE = """
import torch

def network(width):
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.ReLU()]
    for _ in range(2):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))
"""


@slow
def test_no_rank_ever_holds_a_whole_large_layer(train, own) -> None:
    """Beyond what a process takes for a tiny network; of one of 101 MB, each of 4 ranks has 26 MB."""
    model, most = own(WIDE), {}
    fixed = {"data": "digits", "partitions": 1, "rounds": 2, "local_steps": 2, "held_out": 0}
    for ranks, width in ((1, 20), (1, 3500), (4, 20), (4, 3500)):
        with connect(None, ranks) as client:
            own_network = {"model": f"{model}:network", "model_options": {"width": width}}
            run = train(RanksExecutor(client), 2, **fixed, **own_network, ranks=ranks)
            most[ranks, width] = max(run.round(-1).commit.process_group.memory)
    assert most[4, 3500] - most[4, 20] < 0.4 * (most[1, 3500] - most[1, 20])
