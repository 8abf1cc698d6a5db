"""Words of other tools are answered by what they mean."""

from __future__ import annotations

import pytest

import roundweave as rw
from roundweave.flows.command.app import COMMANDS, of_plugins
from roundweave.flows.config.guesses import MEANT, guess
from roundweave.storage.errors import UsageError
from tests.flows.command.in_process import refused, said

WORDS = [(word, meant.split()[0]) for word, meant in MEANT.items() if " " not in meant or meant.startswith("--")]


@pytest.fixture(scope="module")
def known() -> set[str]:
    import inspect

    from roundweave.flows.command.subcommands.training import train_command
    from roundweave.flows.config.algorithms import EVERY_OPTION

    options = {*inspect.signature(train_command).parameters, *EVERY_OPTION}
    return {*COMMANDS, *of_plugins(), *(f"--{name.replace('_', '-')}" for name in options)}


@pytest.mark.parametrize(("word", "meant"), WORDS)
def test_what_is_meant_is_there_and_the_word_is_not(word: str, meant: str, known: set[str]) -> None:
    assert meant in known
    assert word not in known


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("compare a b", "No such command 'compare'; did you mean diff?"),
        ("train --learning-rate 0.1", "No such option: --learning-rate; did you mean --lr?"),
        ("train --epochs=3", "No such option: --epochs; did you mean --local-epochs (of each of the --rounds)?"),
    ],
)
def test_a_word_of_another_tool_is_answered_by_its_meaning(capsys, line: str, says: str) -> None:
    assert refused(capsys, *line.split()) == (2, says)


def test_other_messages_are_left_as_they_are() -> None:
    assert guess("No such option: --roundz (Possible options: --rounds)").endswith("(Possible options: --rounds)")


@pytest.mark.parametrize(
    ("field", "meant"),
    [("learning_rate", "lr"), ("weight_decay", "optimizer_options"), ("fraction_fit", "cohort")],
)
def test_so_is_a_field(field: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown field '{field}'; did you mean {meant}"):
        rw.TrainConfig(**{field: 1})


def test_what_is_no_configuration_is_said(tmp_path, capsys) -> None:
    with pytest.raises(UsageError, match=r"train takes rw\.TrainConfig"):
        rw.train({"rounds": 2})
    with pytest.raises(AttributeError, match="no 'fit'; did you mean train"):
        rw.fit  # noqa: B018
    table = tmp_path / "t.csv"
    table.write_text("a,b\n1,2\n")
    assert refused(capsys, "train", f"{table}") == (2, f"{table} holds data; give `--data {table}`")


@pytest.mark.parametrize("words", [("-h",), ("help",), ("train", "-h"), ("help", "train")])
def test_help_is_asked_for_in_any_way(capsys, words: tuple[str, ...]) -> None:
    assert "Usage: " in said(capsys, *words)


def test_the_version_has_a_short_option(capsys) -> None:
    assert said(capsys, "-V") == said(capsys, "--version")
