"""The user's own functions: found, kept by value, and the same wherever they are loaded."""

from __future__ import annotations

import functools
import hashlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CodeError
from tasks.user_code import Code, find_code, is_reference

LOAD = "import pickle, sys; print(pickle.load(sys.stdin.buffer).load()())"


@pytest.fixture(autouse=True)
def _modules_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def elsewhere(code: Code) -> str:
    """What the function gives in another process, which has the record alone."""
    done = subprocess.run([sys.executable, "-c", LOAD], input=pickle.dumps(code), capture_output=True, check=True)
    return done.stdout.decode().strip()


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Found.


def test_a_function_of_a_file(own) -> None:
    code = find_code(f"{own('def f(): return 6 * 7')}:f")
    assert code.load()() == 42
    assert (code.name, code.source, code.siblings) == ("f", "def f(): return 6 * 7", ())


def test_a_function_of_a_module(tmp_path, monkeypatch) -> None:
    write(
        tmp_path / "parcel",
        __init__="",
        inner="from .other import VALUE\ndef f(): return VALUE",
        other="VALUE = 5",
    )
    monkeypatch.syspath_prepend(tmp_path)
    code = find_code("parcel.inner:f")
    assert code.load()() == 5
    assert code.package == "parcel"
    assert code.siblings == (("other.py", sha(tmp_path / "parcel/other.py")),)


def test_a_function_of_a_notebook_arrives_in_another_process() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("factor = 3\ndef f(): return factor * len(__import__('math').__name__)", namespace)
    code = find_code(namespace["f"])
    assert code.pickled
    assert elsewhere(code) == "12"
    namespace["factor"] = 0
    assert code.load()() == 12


def test_a_function_imported_from_a_file_is_kept_as_its_source(tmp_path, monkeypatch) -> None:
    write(tmp_path, imported="def f(): return 'of a file'")
    monkeypatch.syspath_prepend(tmp_path)
    code = find_code(__import__("imported").f)
    assert not code.pickled
    assert code.source == "def f(): return 'of a file'"
    assert elsewhere(code) == "of a file"


def test_lambdas_partials_and_local_functions_are_kept_as_pickles() -> None:
    def local(value: int = 3) -> int:
        return value

    for function in (lambda: 3, functools.partial(int, "3"), local):
        assert find_code(function).load()() == 3


def test_code_that_is_kept_already_is_taken_as_it_is(own) -> None:
    code = find_code(f"{own('def f(): pass')}:f")
    assert find_code(code) is code


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("mine.py:f", True),
        ("a/b/mine.py:f", True),
        ("C:/mine.py:f", True),
        ("package.module:f", True),
        ("mlp", False),
        ("mine.py", False),
        ("mine.py:", False),
        (":f", False),
        ("mine.py:f()", False),
        ("", False),
    ],
)
def test_what_reads_as_a_reference(text: str, is_one: bool) -> None:
    assert is_reference(text) == is_one


# Kept.


def test_the_kept_source_survives_a_change_and_the_end_of_its_file(own) -> None:
    path = Path(own("def f(): return 'as it was'"))
    code = find_code(f"{path}:f")
    path.write_text("def f(): return 'changed'")
    assert elsewhere(code) == "as it was"
    path.unlink()
    assert elsewhere(code) == code.load()() == "as it was"


def test_a_changed_file_is_other_code(own) -> None:
    codes = []
    for value in (1, 2):
        codes.append(find_code(f"{own(f'def f(): return {value}')}:f"))
    assert [code.load()() for code in codes] == [1, 2]
    assert codes[0].digest != codes[1].digest


def test_the_digest_is_that_of_function_source_and_siblings_wherever_they_lie(tmp_path) -> None:
    source = "import helper\ndef f(): return helper.A\ndef g(): return 2"
    one, moved, other = (
        write(tmp_path / name, mine=source, helper=helper)
        for name, helper in (("one", "A = 1"), ("moved", "A = 1"), ("other", "A = 2"))
    )
    digest = find_code(f"{one}/mine.py:f").digest
    assert find_code(f"{moved}/mine.py:f").digest == digest
    assert find_code(f"{one}/mine.py:g").digest != digest
    assert find_code(f"{other}/mine.py:f").digest != digest


def test_a_function_knows_the_place_of_its_file(tmp_path, monkeypatch) -> None:
    source = "def f(): return __file__"
    path = write(tmp_path / "sub", mine=source, __init__="") / "mine.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for reference in (f"{path}:f", "sub/mine.py:f", "sub.mine:f"):
        for name in [name for name in sys.modules if name.startswith("roundweave_code_")]:
            del sys.modules[name]
        found.append(find_code(reference).load()())
    assert found == [str(path)] * 3


def test_what_is_not_used_may_change_in_the_file_and_beside_it(tmp_path) -> None:
    source = "import helper\ndef f(): return helper.used\ndef g(): return {}"
    folder = write(tmp_path / "with", mine=source.format(1), helper="used = 1\nunused = 1")
    code = find_code(f"{folder}/mine.py:f")
    write(folder, mine=source.format(2), helper="used = 1\nunused = 2")
    assert find_code(f"{folder}/mine.py:f").digest == code.digest
    assert elsewhere(code) == "1"
    write(folder, helper="used = 2\nunused = 2")
    assert find_code(f"{folder}/mine.py:f").changed(code) == ["helper.used"]
    with pytest.raises(CodeError, match="which has changed or gone; restore it"):
        code.load()


def test_a_renamed_file_is_the_same_code(own) -> None:
    source = "def f(): return g\ng = 1"
    assert find_code(f"{own(source)}:f").digest == find_code(f"{own(source, 'other')}:f").digest


# Siblings.


def test_modules_of_the_same_folder_are_listed_with_their_digests(tmp_path) -> None:
    folder = write(
        tmp_path / "with",
        mine="import json, first\ndef f():\n    from second import value\n    return first.value + value",
        first="import third\nvalue = third.value",
        second="value = 20",
        third="import first\nvalue = 1",
        unused="value = 0",
    )
    code = find_code(f"{folder}/mine.py:f")
    assert code.siblings == tuple(
        (f"{name}.py", sha(folder / f"{name}.py")) for name in ("first", "second", "third")
    )
    assert code.load()() == 21
    assert elsewhere(code) == "21"


def test_a_sibling_imported_by_its_package_is_listed(tmp_path, monkeypatch) -> None:
    write(
        tmp_path / "parcel",
        __init__="",
        mine="from . import other\ndef f(): return other.VALUE",
        other="VALUE = 5",
    )
    monkeypatch.syspath_prepend(tmp_path)
    code = find_code("parcel.mine:f")
    assert code.load()() == 5
    assert code.siblings == (("other.py", sha(tmp_path / "parcel/other.py")),)


@pytest.mark.parametrize("change", [lambda path: path.write_text("value = 2"), Path.unlink])
def test_a_sibling_that_changed_or_went_is_refused(tmp_path, change) -> None:
    folder = write(tmp_path / "with", mine="import helper\ndef f(): return helper.value", helper="value = 1")
    code = find_code(f"{folder}/mine.py:f")
    change(folder / "helper.py")
    with pytest.raises(
        CodeError, match=r"mine\.py:f imports .*/helper\.py, which has changed or gone; restore it"
    ):
        code.load()
    (folder / "helper.py").write_text("value = 1")
    assert code.load()() == 1


def test_siblings_of_the_same_name_in_two_folders_are_not_mistaken_for_each_other(tmp_path) -> None:
    found = []
    for name in ("one", "two"):
        folder = write(tmp_path / name, mine="import aid\ndef f(): return aid.value", aid=f"value = {name!r}")
        found.append(find_code(f"{folder}/mine.py:f").load()())
    assert found == ["one", "two"]


def test_a_sibling_that_was_edited_is_read_anew(tmp_path) -> None:
    """As in a notebook that stays open while the files beside it change."""
    found = []
    for value in (1, 222):
        folder = write(tmp_path / "with", mine="import aid\ndef f(): return aid.value", aid=f"value = {value}")
        found.append(find_code(f"{folder}/mine.py:f").load()())
    assert found == [1, 222]


# Refused.


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(: pass", "the file does not run: SyntaxError"),
        ("import nonexistent_module_of_nobody", "the file does not run: ModuleNotFoundError: No module named"),
        ("1 / 0", "the file does not run: ZeroDivisionError: division by zero"),
        ("def g(): pass", "the file has no such function"),
        ("f = 3", "the file has no such function"),
        ("def f():\n    import broken", r"broken\.py"),
    ],
)
def test_a_file_that_does_not_serve_is_refused_in_one_line(own, source: str, reason: str) -> None:
    own("def :", "broken")
    path = own(source)
    with pytest.raises(CodeError, match=reason) as caught:
        find_code(f"{path}:f")
    assert str(caught.value).startswith(f"{path}:f")
    assert "\n" not in str(caught.value)


def test_a_module_that_is_called_as_a_package_of_ours_is_to_be_renamed(own) -> None:
    beside = own("def helper(): pass", "tasks")
    path = own("from tasks import helper\ndef f(): pass")
    with pytest.raises(
        CodeError, match=f"cannot import name 'helper' .*; rename {beside}, for tasks is Roundweave's"
    ):
        find_code(f"{path}:f")


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("/nowhere/mine.py:f", "cannot read /nowhere/mine.py"),
        ("nomodule_of_anybody:f", "no module 'nomodule_of_anybody'"),
        ("nomodule_of_anybody.inner:f", r"no module 'nomodule_of_anybody\.inner'"),
        ("math:floor", "no module 'math' with Python source; give FILE.py:function instead"),
    ],
)
def test_a_place_that_is_not_there_is_named(reference: str, reason: str) -> None:
    with pytest.raises(CodeError, match=reason):
        find_code(reference)


def test_a_file_that_is_no_text_is_refused(tmp_path) -> None:
    (tmp_path / "mine.py").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(CodeError, match="cannot read"):
        find_code(f"{tmp_path}/mine.py:f")
