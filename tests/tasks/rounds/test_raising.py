"""Maps that raise: tried once more, then refused by name, while the other partitions go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client

import roundweave as rw
from storage.errors import RoundFailed
from storage.runs.run import Run
from tasks.clusters.connecting import connect
from tasks.executors.base import Executor
from tasks.executors.gang import GangExecutor
from tasks.executors.graph import GraphExecutor
from tasks.executors.inline import InlineExecutor

SOURCE = """
from pathlib import Path
import torch

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20, 3, generator=generator)
    inputs[:, 0] = partition
    return inputs, (inputs[:, 1] > 0).long()

class Network(torch.nn.Linear):
    '''Does at a partition what a file beside it says: `always-2`, or `once-2`, which it takes away.'''
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, inputs):
        outputs = super().forward(inputs)
        if self.training:
            for mark in Path(__file__).parent.glob(f"*-{int(inputs[0, 0])}"):
                deed = mark.read_text()
                if mark.name.startswith("once"):
                    mark.unlink()
                if deed == "nan":
                    return outputs * torch.nan
                exec(deed)
        return outputs
"""
RAISE = "raise ValueError('too hot\\nand more')"
EXECUTORS = {"inline": lambda client: InlineExecutor(), "graph": GraphExecutor, "gang": GangExecutor}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with connect(None, 2) as client:
        yield client


@pytest.fixture
def fields(own) -> dict[str, object]:
    path = own(SOURCE)
    own_code = {"data": f"{path}:data", "model": f"{path}:Network"}
    return own_code | {"partitions": 4, "rounds": 3, "local_steps": 2, "batch_size": 5, "held_out": 0}


@pytest.fixture
def do(tmp_path: Path) -> Callable[[str, str], None]:
    """Have something done: at ``always-2`` in each map of partition 2, at ``once-2`` in one."""
    return lambda when, deed: (tmp_path / when).write_text(deed)


def executor_of(kind: str, client: Client) -> Executor:
    return EXECUTORS[kind](client)


def states(run: Run) -> list[str]:
    return [run.round(number).commit.state for number in range(run.done + 1)]


@pytest.mark.parametrize("kind", EXECUTORS)
def test_a_partition_whose_map_raises_is_refused_and_the_others_go_on(train, client, fields, do, kind) -> None:
    do("always-2", "nan")
    reference = train(**fields, name="reference")
    do("always-2", RAISE)
    run = train(executor_of(kind, client), 3, **fields, name="run")
    assert states(run) == states(reference)
    for number in range(1, 4):
        (reason,) = run.round(number).refused.items()
        assert reason[0] == 2
        assert reason[1].startswith("the map failed with ValueError: too hot (line ")
        assert "\n" not in reason[1]
    assert run.verify().sound


def test_a_map_that_raises_once_is_tried_again_to_the_same_bits(train, client, fields, do) -> None:
    reference = train(**fields, name="reference")
    for kind in EXECUTORS:
        do("once-2", RAISE)
        run = train(executor_of(kind, client), 3, **fields, name=kind)
        assert states(run) == states(reference)
        assert not any(run.round(number).refused for number in range(1, 4))


@pytest.mark.parametrize("when", ["once-2", "always-2"])
def test_rounds_replay_whether_the_map_raises_again_or_not(train, fields, do, tmp_path, when) -> None:
    do("always-2", RAISE)
    run = train(**fields, name="run")
    (tmp_path / "always-2").unlink()
    do(when, RAISE)
    assert rw.open_run(run.path).replay("all").identical


def test_a_quorum_counts_who_has_not_raised(train, fields, do) -> None:
    do("always-2", RAISE)
    says = r"round 1: 3 of 4 updates are sound, 4 needed; partition 2: the map failed with ValueError: too hot"
    with pytest.raises(RoundFailed, match=says):
        train(**fields, quorum=4, name="run")


@pytest.mark.parametrize("kind", EXECUTORS)
def test_where_all_raise_the_run_ends_with_that_line(train, client, fields, do, kind) -> None:
    for partition in range(4):
        do(f"always-{partition}", RAISE)
    says = (
        r"round 1: 0 of 4 updates are sound, 1 needed; partition 0: the map failed with ValueError: too hot \(line"
    )
    with pytest.raises(RoundFailed, match=says) as caught:
        train(executor_of(kind, client), 3, **fields, name="run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_a_map_without_memory_ends_the_run(train, client, fields, do, kind) -> None:
    do("always-2", "raise MemoryError('none left')")
    with pytest.raises(RoundFailed, match="the map of partition 2 failed with MemoryError: none left"):
        train(executor_of(kind, client), 3, **fields, name="run")


@pytest.mark.parametrize("kind", ["inline", "graph"])
def test_a_server_goes_on_without_a_partition_whose_map_raises(train, client, fields, do, kind) -> None:
    do("always-2", RAISE)
    server = fields | {"algorithm": "async_sgd", "rounds": 24, "local_steps": None}
    del server["local_steps"]
    run = train(executor_of(kind, client), 24, **server, name="run")
    reasons = {p: line for number in range(1, 25) for p, line in run.round(number).refused.items()}
    assert set(reasons) == {2}
    assert reasons[2].startswith("the map failed with ValueError: too hot (line ")
    assert rw.open_run(run.path).replay("all").identical
