"""A user's plugins: given by any door, their hooks end, fail or decide a training, and lose no round of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter

import roundweave as rw
from roundweave.flows.config.recorded import check_same_experiment, differences, resumed_config
from roundweave.flows.reporting.reporter import LARGEST_PICKLE, without_pickles
from roundweave.storage.errors import ExperimentDiffers, PluginFailed, RoundFailed
from tests.commands import plain_command
from tests.flows.command.in_process import refused, said
from tests.flows.command.in_process import run as command
from tests.flows.nights import night
from tests.flows.plugins import own as plugins
from tests.flows.plugins.own import HOOKS, Ends, Noise, Trace, Watches
from tests.flows.prefect_server import command_line, until

FLAGS = ["--model", "logistic", "--partitions", "2", "--local-steps", "2", "--executor", "inline"]
"""The small configuration of `tests.flows.nights`."""


def trained(*given: rw.Plugin, **fields: Any) -> rw.Run:
    return rw.train(night(**{"name": "a"} | fields), bar=False, plugins=given)


@pytest.fixture
def mine(own) -> Path:
    """The file of plugins as a user's own."""
    return Path(own(Path(plugins.__file__).read_text()))


@pytest.fixture
def package(tmp_path: Path) -> Any:
    """Install a package that brings a plugin, and run a command in an environment that has the package."""
    folder = tmp_path / "packages"

    def install(name: str, plugin: str = "Trace", version: str = "1.0", more: str = "") -> None:
        for old in folder.glob(f"{name}-*"):
            shutil.rmtree(old)
        made = folder / f"{name}-{version}.dist-info"
        made.mkdir(parents=True)
        (folder / f"{name}.py").write_text(Path(plugins.__file__).read_text() + more)
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (made / "entry_points.txt").write_text(f"[roundweave.plugins]\n{name} = {name}:{plugin}\n")

    def run(*words: object, command: Callable[..., list[str]] = plain_command) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
        return subprocess.run(command(*words), env=environment, capture_output=True, text=True, check=False)

    run.install = install  # type: ignore[attr-defined]
    return run


# The doors: an instance, a file, a package.

CALLED = ["configure", "plan", "began 0", "committed 1", "committed 2", "ended 2 None"]


def test_hooks_of_an_instance_are_called_in_their_order(tmp_path: Path) -> None:
    trained(Trace(trace=tmp_path / "trace"))
    assert (tmp_path / "trace").read_text().splitlines() == CALLED


def test_hooks_of_a_class_in_a_file_are_too_and_its_place_goes_from_the_configuration(mine, capsys) -> None:
    trace, folder = mine.parent / "trace", mine.parent / "project"
    folder.mkdir()
    mine.rename(folder / "mine.py")
    (folder / "train.toml").write_text(f'rounds = 2\nplugins = [{{name = "mine.py:Trace", trace = "{trace}"}}]')
    said(capsys, "train", str(folder / "train.toml"), *FLAGS)
    assert trace.read_text().splitlines() == CALLED


@pytest.mark.dear("an installed package is found by a new process")
def test_the_options_of_a_package_are_flags_and_keys(package, tmp_path: Path) -> None:
    package.install("traced")
    (tmp_path / "a.toml").write_text(f'rounds = 2\ntrace = "{tmp_path}/trace"')
    for given in ([tmp_path / "a.toml"], ["--rounds", "2", "--trace", tmp_path / "trace"]):
        (tmp_path / "trace").unlink(missing_ok=True)
        assert package("train", *given, *FLAGS).returncode == 0
        assert (tmp_path / "trace").read_text().splitlines() == CALLED
    assert package("train", *FLAGS).returncode == 0  # and without its options it takes no part
    listed = json.loads(package("list", "plugins", "--json").stdout)["plugins"]
    about = "Appends to a file which hooks are called; one of them may fail"
    assert listed[-1] == {"name": "Trace", "what it is": about, "options": "trace, fails"}


@pytest.mark.dear("installed packages are found by a new process")
@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"one": "Trace", "two": "Trace"}, "plugin two:Trace has an option trace, as one:Trace has; rename it"),
        ({"one": "Again"}, "plugin one:Again has an option retries, as Execution has; rename it"),
    ],
)
def test_a_package_whose_options_there_are_already_is_refused(package, named: dict[str, str], says: str) -> None:
    for name, plugin in named.items():
        package.install(name, plugin)
    run = package("list", command=command_line)
    assert (run.returncode, run.stderr.count("\n"), says in run.stderr) == (2, 1, True), run.stderr


@pytest.mark.dear("an installed package is found by a new process")
@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        ("Ends", "plugin one:Ends: give at a default, with which it takes no part"),
        ("Noisy", "plugin one:Noisy must be a subclass of roundweave.Plugin"),
        ("Nobody", "plugin one:Nobody cannot be loaded: AttributeError"),
    ],
)
def test_a_package_that_brings_no_plugin_is_named_and_the_rest_works(package, plugin: str, says: str) -> None:
    package.install("one", plugin)
    package.install("two")
    listed = package("list", "plugins", "--json", command=command_line)
    assert json.loads(listed.stdout)["plugins"][-1]["name"] == "Trace", listed.stderr
    assert listed.stderr.startswith(says), listed.stderr
    assert listed.stderr.endswith("; the plugin of one 1.0 is ignored\n")
    assert listed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{mine}:Noisy", "must be a subclass of roundweave.Plugin"),
        ("{mine}:Nobody", "no such function or class; it has Trace"),
        ({"name": "{mine}:Ends", "att": 3}, "unknown field 'att'; did you mean at?"),
        ({"name": "{mine}:Ends", "at": 3, "decides": True}, "a plugin is FILE.py:Class, or a table of this name"),
        ("3", "a plugin is FILE.py:Class, or a table of this name and options, not '3'"),
        ("mine.py", "a plugin is FILE.py:Class, or a table of this name and options, not 'mine.py'"),
    ],
)
def test_what_is_no_plugin_is_refused(mine, given: Any, says: str) -> None:
    given = {**given, "name": f"{mine}:Ends"} if isinstance(given, dict) else str(given).format(mine=mine)
    with pytest.raises(rw.RoundweaveError, match=says):
        rw.TrainConfig(plugins=[given])


@pytest.mark.parametrize("given", [Watches, Watches(at=1), None, [Watches], [lambda run: None]])
def test_instances_alone_are_given_to_train(given: Any) -> None:
    with pytest.raises(rw.UsageError, match=r"plugins takes instances of roundweave.Plugin, such as \[Mine\(\)\]"):
        rw.train(night(name="a"), bar=False, plugins=given)


def test_a_misspelt_hook_is_named() -> None:
    with pytest.raises(rw.UsageError, match=r"plugin Late: did you mean committed by commited\? Rename commited"):
        type("Late", (rw.Plugin,), {"commited": lambda self, run, commit: None, "__module__": __name__})


def made(name: str = "Mine", **named: Any) -> type[rw.Plugin]:
    """A class of plugins as a user writes it, with these methods and fields."""
    return type(name, (rw.Plugin,), {"__module__": __name__, **named})


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"__annotations__": {"label": str}}, "no option can be called label; rename it"),
        ({"__annotations__": {"watches": bool}, "watches": True}, "no option can be called watches; rename it"),
        ({"plan": 3}, "no option can be called plan; rename it"),
        ({"n": 3}, "PydanticUserError: A non-annotated attribute was detected: `n = 3`; give each option a"),
        ({"committed": lambda self, run: None}, "committed must take (self, run, commit)"),
    ],
)
def test_a_class_that_could_not_be_used_is_refused_where_it_is_defined(named: dict[str, Any], says: str) -> None:
    with pytest.raises(rw.UsageError, match=re.escape(f"plugin Mine: {says}")):
        made(**named)


def test_a_plugin_without_a_hook_is_refused() -> None:
    quiet = made(on_round_end=lambda self, run: None)
    for train in (lambda: trained(quiet()), lambda: trained(plugins=[quiet])):
        with pytest.raises(rw.UsageError, match=r"^plugin Mine overrides no hook, so it does nothing; there are"):
            train()
    assert made(shown=classmethod(lambda cls, run: {})).overrides()


def test_what_a_plugin_remembers_is_under_a_name_of_its_own() -> None:
    def began(self: Any, run: rw.Run) -> None:
        self._seen = [run.done]

    def committed(self: Any, run: rw.Run, commit: Any) -> None:
        self._seen.append(commit.round)

    remembers = made(began=began, committed=committed)()
    trained(remembers)
    assert remembers._seen == [0, 1, 2]  # type: ignore[attr-defined]


def sets(self: Any, at: Any) -> None:
    self.seen = at


@pytest.mark.parametrize("named", [{"began": sets}, {"__init__": sets, "began": lambda self, run: None}])
def test_what_sets_an_option_is_told_where_it_may_remember(named: dict[str, Any]) -> None:
    mine = made(**named)
    line = sets.__code__.co_firstlineno + 1
    with pytest.raises(rw.RoundweaveError, match=r"plugin Mine is frozen; keep .* as self\._seen") as it:
        trained(mine(at=1) if "__init__" in named else mine())
    assert "__init__" in named or f"(line {line} of {__file__}); the 0 rounds of a stay" in str(it.value)


def test_an_option_that_a_constructor_takes_and_no_field_has_is_refused() -> None:
    def constructor(self: Any, at: int) -> None:
        rw.Plugin.__init__(self)
        self._at = at

    mine = made(__init__=constructor, began=lambda self, run: None, decides=True)
    with pytest.raises(rw.UsageError, match=r"^plugin Mine \(\w+\) cannot be made: TypeError: .*argument: 'at'"):
        trained(mine(1))


# What it sees of a run.


class Notes(rw.Plugin):
    """Writes of each round how the run is seen at its commit, once there are as many rounds as given."""

    watches: ClassVar[bool] = True
    after: int = 0

    def committed(self, run: rw.Run, commit: Any) -> None:
        until(lambda: rw.open_run(run.name).done >= self.after)
        run.write_section("notes", [commit.round, run.done, len(run.history()), run.round(-1).number])


@pytest.mark.parametrize(("executor", "after"), [("inline", 0), ("graph", 6)])
def test_at_a_commit_the_run_ends_with_its_round(executor: str, after: int, client) -> None:
    with client.as_current():
        run = trained(Notes(after=after), executor=executor, rounds=6, window=6)
    assert [run.section("notes", round) for round in range(1, 7)] == [[n, n, n + 1, n] for n in range(1, 7)]
    assert (run.section("notes", 0), run.section("notes"), run.verify().sound) == (None, [6, 6, 7, 6], True)


# What ends a training.


@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_text_ends_the_training_at_that_very_round_until_more_are_wanted(executor: str, client, capsys) -> None:
    fields = {"executor": executor, "rounds": 30}
    with client.as_current():
        run = trained(Ends(at=2), **fields)
        assert (run.done, run.status, run.stop) == (2, "complete", "Ends: that was round 2")
        assert "Ends: that was round 2" in said(capsys, "show", "a")
        assert run.digest == trained(name="plain").digest
        assert trained(**fields).done == 2  # as a retry
        said(capsys, "resume", "a", "--executor", executor)
        assert run.refresh().done == 2
        assert trained(Ends(at=4), **fields | {"rounds": 31}).stop == "Ends: that was round 4"
    assert rw.open_run("a").verify().sound


def test_ranks_do_not_go_ahead_of_a_plugin_that_may_end_the_training(client) -> None:
    with client.as_current():
        assert trained(Ends(at=2), executor="ranks", rounds=9).done == 2


@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_rule_of_a_file_ends_the_training_where_rounds_are_committed(executor: str, client, mine) -> None:
    with client.as_current():
        run = trained(executor=executor, rounds=9, plugins=[{"name": f"{mine}:Ruled", "at": 2}])
    assert (run.done, run.stop) == (2, "that was round 2")


def test_who_only_watches_ends_nothing() -> None:
    with pytest.raises(PluginFailed, match="watches = True says that it never ends the training"):
        trained(Watches(at=1))
    assert trained().done == 2


# What a hook raises.

STAYS = {"began": 0, "committed": 1, "ended": 2}


@pytest.mark.parametrize("hook", HOOKS)
def test_what_a_hook_raises_ends_the_training_with_its_name_and_loses_no_round(hook: str, tmp_path: Path) -> None:
    with pytest.raises(PluginFailed, match=r"^plugin Trace failed with ValueError: oh \(line \d+ of") as raised:
        trained(Trace(trace=tmp_path / "trace", fails=hook))
    assert "\n" not in str(raised.value)
    if hook in STAYS:
        assert f"the {STAYS[hook]} rounds of a stay, `roundweave resume a` continues" in str(raised.value)
        assert rw.open_run("a").done == STAYS[hook]
    run = trained()
    assert (run.done, run.status, run.verify().sound) == (2, "complete", True)
    assert run.digest == trained(name="plain").digest


def test_an_error_of_the_training_is_told_to_all_and_stays_the_error(tmp_path: Path, capsys) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(RoundFailed):
        trained(Trace(trace=trace, fails="ended"), Trace(trace=trace), lr=1e39)
    assert [line[:15] for line in trace.read_text().splitlines()[-2:]] == ["ended 0 round 1"] * 2
    assert "plugin Trace failed with ValueError: oh" in capsys.readouterr().err


@pytest.mark.parametrize("hook", ["configure", "plan"])
def test_a_hook_that_gives_nothing_back_is_refused(hook: str) -> None:
    forgets = type("Forgets", (rw.Plugin,), {hook: lambda self, given: None, "__module__": __name__})
    with pytest.raises(PluginFailed, match=f"plugin Forgets failed: {hook} must return a"):
        trained(forgets())


def raised(error: Exception) -> Any:
    """A hook that raises an error."""

    def hook(*_: Any) -> Any:
        raise error

    return hook


@pytest.mark.parametrize("hook", ["fits", "around"])
def test_a_hook_that_fails_before_the_plan_is_named_whichever_the_door(hook: str) -> None:
    fails = type("Fails", (rw.Plugin,), {hook: raised(KeyError("oh")), "__module__": __name__})
    for train in (lambda: trained(fails()), lambda: trained(plugins=[fails])):
        with pytest.raises(PluginFailed, match=r"^plugin Fails failed with KeyError: 'oh'"):
            train()


def test_fields_that_a_plugin_excludes_are_refused_whichever_the_door() -> None:
    refuses = {"fits": raised(ValueError("leave rounds out")), "__module__": __name__}
    refuser = type("Refuses", (rw.Plugin,), refuses)
    for train in (lambda: trained(refuser()), lambda: trained(plugins=[refuser])):
        with pytest.raises(rw.RoundweaveError, match=r"^leave rounds out$"):
            train()


@dataclass(frozen=True)
class Some(rw.Sampler):
    """The first partitions."""

    size: int

    def draw(self, *_: Any) -> tuple[int, ...]:
        return tuple(range(self.size))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda plan: plan.wrap(map=lambda map: plugins.Noisy(map, 0.1)),
            "changes the algorithm of a run; give it decides = True",
        ),
        (lambda plan: plan.fill("mine", sampler=Some(2)), "changes the sampler of a run; give it decides = True"),
        (lambda plan: plan.fill("mine", sampeler=1), "a plan has no sampeler; did you mean sampler?"),
        (lambda plan: plan.add(stop=1), "a plan has no stop; did you mean stops?"),
        (lambda plan: replace(plan, sampler=3), "sampler: 3 is no rw.Sampler whose size is 1 to 2"),
    ],
)
def test_what_a_plugin_may_not_do_to_a_plan_is_refused(change: Callable[..., Any], says: str) -> None:
    decides = "sampler: 3" in says
    named = {"plan": lambda self, plan: change(plan), "decides": decides, "__module__": __name__}
    changes = type("Changes", (rw.Plugin,), named)
    with pytest.raises(rw.UsageError, match=re.escape(says)):
        trained(changes())


def test_a_plugin_that_is_given_twice_is_refused_unless_its_options_differ(mine, tmp_path: Path) -> None:
    given = {"name": f"{mine}:Trace", "trace": str(tmp_path / "a")}
    for twice in (
        lambda: trained(plugins=[given, given]),
        lambda: trained(Trace(trace=tmp_path / "a"), plugins=[given]),
        lambda: trained(Noise(size=0.1), Noise(size=0.1)),
    ):
        with pytest.raises(
            rw.UsageError, match=r"^plugin (Trace|Noise) is given twice with the same options; leave"
        ):
            twice()
    trained(Trace(trace=tmp_path / "b"), plugins=[given])
    assert (tmp_path / "b").read_text().splitlines()[-1] == CALLED[-1]


def test_a_hook_that_returns_no_text_is_refused_and_one_in_the_last_round_ends_nothing() -> None:
    true = type("Truthful", (rw.Plugin,), {"committed": lambda *_: True, "__module__": __name__})
    with pytest.raises(
        PluginFailed, match="committed returns a text that says why training ends, or None, not True"
    ):
        trained(true())
    assert trained(Ends(at=2)).stop is None


# What decides bits.


def noisy(mine: Path, **fields: Any) -> rw.Run:
    return trained(plugins=[{"name": f"{mine}:Noise", "size": 0.01}], **fields)


def test_what_decides_bits_has_the_same_ones_however_it_is_given_and_run(mine, client) -> None:
    run, plain = trained(Noise(size=0.01)), trained(name="plain")
    with client.as_current():
        other = noisy(mine, name="graph", executor="graph")
        assert run.digest == other.digest != plain.digest
        assert other.replay("all", executor="graph").identical
    assert run.replay("all").identical
    assert [each.round for each in run.recombine(reduce=rw.Median()).rounds] == [1, 2]


def test_what_is_sent_is_packed_last(mine) -> None:
    assert "Compressed(map=Noisy(map=LocalSteps(" in noisy(mine, compress="sign").attributes["algorithm"]


def test_what_decides_bits_is_kept_in_the_run_and_goes_along(mine, capsys) -> None:
    run = noisy(mine)
    mine.write_text("raise RuntimeError('this is another file')")
    assert run.replay("all").identical
    said(capsys, "resume", "a", "--rounds", "3", "--executor", "inline")
    assert run.refresh().done == 3
    child = rw.train(rw.fork("a@2", rounds=1, name="child", executor="inline"), bar=False)
    assert child.replay("all").identical
    assert [each["size"] for each in child.config["plugins"]] == [0.01]


def test_what_prefect_shows_has_a_name_in_place_of_a_long_pickle() -> None:
    text = "x " * LARGEST_PICKLE
    local = type(
        "Local", (rw.Plugin,), {"decides": True, "plan": lambda self, plan: text and plan, "__module__": "m"}
    )
    shown = without_pickles(rw.TrainConfig(plugins=[local]))
    assert TypeAdapter(rw.TrainConfig).validate_python(shown).plugins[0].name == "Local"


@pytest.mark.dear("an installed package is found by a new process")
def test_that_of_a_package_is_needed_by_its_run(package) -> None:
    package.install("noisy", "Hiss")
    done = package("train", "--size", "0.01", "--name", "a", "--rounds", "2", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert package("replay", "a", "--all", "--executor", "inline").returncode == 0
    for again in (rw.open_run("a").replay, lambda: trained(rounds=3), lambda: rw.fork("a@1")):
        with pytest.raises(
            rw.UsageError, match=r"^a needs the plugin noisy:Hiss, which is not installed; install its"
        ):
            again()


@pytest.mark.dear("installed packages are found by a new process")
def test_that_of_a_package_of_another_version_or_code_is_another_experiment(package) -> None:
    package.install("noisy", "Hiss")
    assert package("train", "--size", "0.01", "--name", "a", "--rounds", "2", *FLAGS).returncode == 0
    for version, more in (("2.0", ""), ("1.0", "# changed")):
        package.install("noisy", "Hiss", version, more)
        again = package("resume", "a", "--rounds", "3", "--executor", "inline", command=command_line)
        both = rf"plugin noisy:Hiss of noisy 1\.0 \(\w+\) -> noisy {version} \(\w+\)"
        assert re.search(rf"a is another experiment \({both}\)", again.stderr), again.stderr
    replayed = package("replay", "a", "--executor", "inline").stdout
    assert re.search(r"not as recorded: versions: noisy:Hiss noisy 1\.0 \(.*\) instead of noisy 1\.0 \(", replayed)


def test_a_run_that_recorded_no_package_of_its_plugins_goes_on() -> None:
    check_same_experiment(trained(), night(name="a"), {"noisy:Hiss": "noisy 1.0 (01234567)"})


@pytest.mark.dear("an installed package is found by a new process")
def test_a_run_goes_on_without_the_options_of_a_package_that_is_gone(package, capsys, tmp_path: Path) -> None:
    package.install("traced")
    trace = ("--trace", str(tmp_path / "trace"))
    assert package("train", *trace, "--name", "a", "--rounds", "2", *FLAGS).returncode == 0
    code, _, err = command(capsys, "resume", "a", "--rounds", "3", "--executor", "inline")
    assert (code, rw.open_run("a").done) == (0, 3), err
    assert "a continues without fails, trace: no installed plugin has them\n" in err
    assert refused(capsys, "train", *trace, *FLAGS)[0] == 2


@pytest.mark.parametrize("given", [[], [Noise(size=0.02)]])
def test_without_it_or_with_other_options_the_run_is_another(given: list[rw.Plugin]) -> None:
    trained(Noise(size=0.01))
    with pytest.raises(
        ExperimentDiffers, match=r"^a is another experiment \(plugins .*Noise .*size=0.01\) -> .*$"
    ):
        trained(*given, rounds=3)


def test_the_line_about_changed_code_says_which_definition_changed(mine) -> None:
    noisy(mine)
    mine.write_text(mine.read_text().replace("self.size * torch", "2 * self.size * torch"))
    with pytest.raises(ExperimentDiffers, match=rf"\(plugins {mine.name}:Noise, of which Noisy changed\)"):
        noisy(mine, rounds=3)


def test_a_resumed_run_may_have_other_plugins_beside_those_that_decide(mine, capsys, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trained(plugins=[{"name": f"{mine}:Noise", "size": 0.01}, {"name": f"{mine}:Ends", "at": 1}])
    resume = ("resume", "a", "--executor", "inline", "--rounds")
    tables = json.dumps([{"name": f"{mine}:Trace", "trace": str(trace)}])
    said(capsys, *resume, "3", "--plugins", tables)
    assert trace.read_text().splitlines()[-1] == "ended 3 None"
    assert f"plugins    {mine.name}:Noise, {mine.name}:Ends\n" in said(capsys, "show", "a")
    assert f"plugins    {mine.name}:Noise" in str(rw.open_run("a"))
    said(capsys, "train", "--plugins", json.dumps([{"name": f"{mine}:Ends", "at": 1}]), "--name", "b", *FLAGS)
    assert rw.open_run("b").done == 1


def test_what_decides_no_bits_may_change(mine) -> None:
    ends = {"name": f"{mine}:Ends", "at": 1}
    assert trained(plugins=[ends]).done == 1
    assert trained(plugins=[ends | {"at": 3}], rounds=5).done == 3
    assert trained(rounds=6).done == 6


MARKS = """
import roundweave as rw
open({mark!r}, "w").close()
class Noise(rw.Plugin):
    decides = True
    def began(self, run):
        pass
"""


def test_that_of_a_run_from_elsewhere_is_run_with_trust_alone(own, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = trained(plugins=[f"{own(MARKS.format(mark=str(mark)))}:Noise"])
    mark.unlink()
    theirs = rw.Run(run.path.rename(tmp_path / "theirs.zarr"), tmp_path / "runs")
    for asked in (theirs.replay, lambda: resumed_config(str(theirs.path), None, trust=False, changes={})):
        with pytest.raises(rw.UsageError, match=r"holds code .*Noise.*trust"):
            asked()
    assert not mark.exists()
    assert theirs.replay("all", trust=True).identical


def test_a_record_that_names_a_file_of_this_machine_runs_nothing(own, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    reference = f"{own(MARKS.format(mark=str(mark)))}:Noise"
    for named in (reference, {"name": reference, "decides": True}, {"name": {}, "decides": "no"}):
        with pytest.raises(rw.RoundweaveError, match=r"a record has the plugin .*, which no run records"):
            differences({"plugins": [named]}, rw.TrainConfig())
    assert not mark.exists()
