"""No store of a stranger makes a command end in a traceback, obey its texts, or take what the machine has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import roundweave as rw
from roundweave.storage import errors
from roundweave.storage.errors import LONGEST, RoundweaveError, one_line, printable
from tests.flows.command import in_process
from tests.hostile.commands import COMMANDS, controls, tried, wrong
from tests.hostile.running import Commands
from tests.hostile.stores import FOLDERS, PWN, STORES, Store, attribute, product, write
from tests.training import trained

ALL = list(COMMANDS)

LEAST = 1 << 29
"""Bytes beyond its own that a command may take for any of them."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run, of two rounds of two partitions."""
    fields = {"model": "logistic", "algorithm": "scaffold", "partitions": 2, "rounds": 2, "name": "sound"}
    return trained(tmp_path_factory.mktemp("sound"), **fields).path


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs commands, each in a process of its own with bounds."""
    made = Commands()
    made.run(tmp_path_factory.mktemp("first"), "--version")  # after all is imported
    yield made
    made.close()


def check(commands: Commands, base: Path, folder: Path, name: str, chosen: list[str], title="x") -> list[str]:
    """What is wrong with commands over a store, which is made in a folder."""
    store = write(base, STORES.get(name, lambda store: None), folder / "runs" / f"{title}.zarr")
    told = list(tried(commands, chosen, store, base, folder))
    large = [f"{each['command']} took {each['bytes']:,} bytes" for each in told if each["bytes"] > LEAST]
    return large + [f"{each['command']}: {each['wrong']}\n{each['err']}" for each in told if each["wrong"]]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        # Numbers that no run has, texts that a terminal obeys, places elsewhere, what is no file, what has no end
        ("record-of-round-999999", "show"),
        ("updates-of-10000-partitions", "runs"),
        ("score.loss-3", "show --json"),
        ("escapes-refusal", "show"),
        ("escapes-failure", "runs"),
        ("schema.layout.params.0.0-0", "verify"),
        ("attributes-deep", "runs --json"),
        ("commits/2.json-fifo", "verify"),
        ("config-0", "rm"),
        ("score.values-0", "export best"),
        ("updates/float32/c/1/0/0-sparse", "verify"),
    ],
)
def test_a_command_in_this_process_obeys_no_store(base, tmp_path, capsys, monkeypatch, name, command) -> None:
    """Where it would be killed for its memory or its time, this process would be."""
    monkeypatch.chdir(tmp_path)

    def answer(folder: Path, *arguments: str) -> dict[str, Any]:
        code, out, err = in_process.run(capsys, *arguments)
        return {"code": code, "out": out, "err": err, "traceback": "", "bytes": 0}

    assert check(SimpleNamespace(run=answer), base, tmp_path, name, [command]) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "command"), list(zip(STORES, cycle(ALL), strict=False))[::6])
def test_over_each_store_a_command_is_tried(commands, base, tmp_path: Path, name, command) -> None:
    assert check(commands, base, tmp_path, name, [command]) == []


@pytest.mark.thorough
@pytest.mark.parametrize("title", FOLDERS.values(), ids=FOLDERS)
def test_the_name_of_a_folder_is_as_harmless(commands, base, tmp_path: Path, title) -> None:
    assert check(commands, base, tmp_path, "", ["runs", "show", "report", "replay", "python cards"], title) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_over_each_store_all_commands_are_tried(commands, base, tmp_path: Path, name) -> None:
    assert check(commands, base, tmp_path, name, ALL) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_field_may_say_anything(commands, base, tmp_path: Path) -> None:
    found, asked = [], ["runs", "show", "verify", "diff", "cp", "python cards", "python numbers", "resume"]
    for number, (name, make) in enumerate(product(base)):
        folder = tmp_path / str(number)
        store = write(base, make, folder / "x.zarr")
        # Two of them each: as many as there are fields with this value, all have their turn.
        chosen = {asked[number % len(asked)], asked[(number // len(asked)) % len(asked)]}
        told = tried(commands, [*chosen], store, base, folder)
        found += [f"{name}, {each['command']}: {each['wrong']}" for each in told if each["wrong"]]
    assert found == []


def test_numbers_that_no_run_has_are_named(base, tmp_path: Path) -> None:
    said = {
        "schema.partitions-0": "schema: partitions: Input should be less than or equal to 1048576",
        "score.loss-0": "commits/2.json is no commit record: score.loss: Input should be a valid number",
        "created-0": "created: Input should be less than 9000000000",
        "updates.2-0": "it names a partition beyond the 2 of the run",
        "commits-missing": "has no committed round",
    }
    for name, line in said.items():
        store = write(base, STORES[name], tmp_path / name.replace("/", "-"))
        with pytest.raises(RoundweaveError, match=line.removeprefix("schema: ")):
            rw.open_run(store).round(-1).update(0)


def test_a_text_is_shown_in_one_line_without_controls() -> None:
    shown = printable(f"größe {PWN} 数")
    assert controls(shown) == ""
    assert "\n" not in shown
    assert shown.startswith(r"größe \x1b]0;PWNED\x07\x1b[2J\x9b31m\x7f\u202etxt.exe\u2066\n[bold red]forged")
    assert printable("\udcff") == "\\udcff"
    assert printable("a" * (LONGEST + 5)) == "a" * LONGEST + "… and 5 characters more"


def test_errors_of_code_are_shown_so_too() -> None:
    assert one_line(ValueError("\x1b[2Jno\nmore")) == "ValueError: \\x1b[2Jno"
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    assert {str(kind(PWN)) for kind in kinds if issubclass(kind, RoundweaveError)} == {printable(PWN)}


def test_what_is_wrong_is_seen(base, tmp_path: Path) -> None:
    """The tests above could not fail otherwise."""
    fine = {"traceback": "", "code": 0, "out": "a\n", "err": "", "page": ""}
    assert wrong(fine) == ""
    for other in ({"out": "\x1b"}, {"err": "\x7f"}, {"page": "\u202e"}, {"code": 99}, {"traceback": "E: x"}):
        assert wrong(fine | other)
    sound = write(base, lambda store: store.seal(), tmp_path / "runs/sound.zarr")
    assert rw.open_run(sound).verify().sound, "sealing what nobody changed makes a sound run"
    changed = write(base, attribute("config", "seed", value=7), tmp_path / "runs/changed.zarr")
    assert rw.open_run(changed).verify().sound, "as does sealing what was changed"
    assert Store(changed).attributes["config"]["seed"] == 7
