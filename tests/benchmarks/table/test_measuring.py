from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks.table.environments import PEERS
from tests.benchmarks.table.errors import NoReading
from tests.benchmarks.table.measuring import Line, Measured, lines, measure
from tests.benchmarks.table.picture import draw
from tests.benchmarks.table.processes import read
from tests.benchmarks.table.rows.base import EXECUTORS, KEEPS, Contender, Row
from tests.benchmarks.table.rows.examples import none
from tests.benchmarks.table.rows.table import ALL, ROWS
from tests.benchmarks.table.showing import table, write_json

PEER, OTHER = Contender("peer", ""), Contender("other", "")
ROW = Row(
    "row", "a row", {"round": "ms"}, (PEER, OTHER), tuple(Contender(name, "") for name in EXECUTORS[:2]), none
)
TOLD = {"peer": [1.0, 10.0, 2.0], "inline": [2.0, 5.0, 8.0], "graph": [1.0, 1.0, 1.0]}


def measured(repeats: int = 3, seconds: float = 60.0) -> tuple[Measured, list[str]]:
    """The row with `TOLD`, of which `other` tells nothing, and who was asked."""
    asked: list[str] = []

    def tell(contender: Contender) -> dict[str, float]:
        asked.append(contender.name)
        if contender.name not in TOLD:
            raise NoReading("it is not here")
        return {"round": TOLD[contender.name][asked.count(contender.name) - 1]}

    return measure(ROW, tell, repeats, seconds), asked


def shown() -> list[Line]:
    return list(lines(measured()[0]))


def test_ratios_are_of_readings_of_one_turn() -> None:
    beside, _ = shown()
    assert beside.median == 2.0
    inline = beside.ours["inline"]
    # Turn by turn 2, 1/2 and 4; of the medians it would be 5/2.
    assert (inline.median, inline.ratio, inline.lowest, inline.highest) == (5.0, 2.0, 0.5, 4.0)


def test_turns_interleave_and_who_fails_is_asked_once() -> None:
    _, asked = measured(2)
    assert asked == ["peer", "other", "inline", "graph", "peer", "inline", "graph"]


def test_when_time_is_over_no_further_turn_begins() -> None:
    assert len(measured(3, seconds=0.0)[0].turns) == 1


def test_a_missing_peer_says_why_in_its_line_and_ours_are_shown() -> None:
    line = shown()[1]
    assert line.median is None
    assert line.missing == {"other": "it is not here"}
    assert (line.ours["inline"].median, line.ours["inline"].ratio) == (5.0, None)
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table(shown()))
    assert "other: it is not here" in captured.get()


def test_a_process_gives_what_its_last_line_tells_and_its_seconds(tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    file.write_text('{"round": 2.5}')
    readings = read(Contender("json", "json.tool", ("--compact",)), file, tmp_path)
    assert readings.pop("exit") > 0
    assert readings == {"round": 2.5}


def test_a_process_that_fails_says_why_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(NoReading, match=r"No such file or directory: '.*absent'$"):
        read(Contender("json", "json.tool"), tmp_path / "absent", tmp_path)


@pytest.mark.parametrize("row", ALL, ids=ROWS)
def test_every_contender_of_a_row_is_there_under_a_name_of_its_own(row: Row) -> None:
    names = [contender.name for contender in row.contenders]
    assert len(set(names)) == len(names)
    assert {(each.executor, each.keep) for each in row.ours} <= {*product(EXECUTORS, KEEPS)}
    assert row.targets.keys() <= {each.keep for each in row.ours}
    assert {peer for targets in row.targets.values() for peer in targets} <= {peer.name for peer in row.peers}
    for contender in row.contenders:
        assert find_spec(contender.module), contender.module
        if contender.environment:
            assert (PEERS / contender.environment / "requirements.txt").exists()


def test_the_picture_and_the_numbers_are_written(tmp_path: Path) -> None:
    draw(shown(), tmp_path / "pictures" / "ratios.png")
    assert (tmp_path / "pictures" / "ratios.png").read_bytes().startswith(b"\x89PNG")
    write_json([measured()[0]], shown(), tmp_path / "numbers.json")
    told = json.loads((tmp_path / "numbers.json").read_text())
    turn = told["rows"][0]["turns"][1]
    assert turn == {"peer": {"round": 10.0}, "inline": {"round": 5.0}, "graph": {"round": 1.0}}
    assert told["lines"][0]["ours"]["inline"]["ratio"] == 2.0
