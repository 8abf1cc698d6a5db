"""The user's own functions: found, kept by value, and the same wherever they are loaded."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundweave.storage.errors import CodeError
from roundweave.storage.values.hashing import json_digest
from roundweave.tasks.own_code.code import Code, Ran, find_code, is_reference
from tests.rows import but_first


def forget(which: Callable[[str], bool]) -> None:
    """Take modules for not imported."""
    for name in filter(which, list(sys.modules)):
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _modules_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    forget(lambda name: str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")))


def said(pickled: bytes, of_it: str) -> str:
    """What another process has of a pickle."""
    line = [sys.executable, "-c", f"import pickle, sys; print(pickle.load(sys.stdin.buffer){of_it})"]
    return subprocess.run(line, input=pickled, capture_output=True, check=True).stdout.decode().strip()


def elsewhere(code: Code) -> str:
    """What the function gives in another process, which has the record alone."""
    return said(pickle.dumps(code), ".load()()")


def write(folder: Path, files: dict[str, str] | None = None, **modules: str) -> Path:
    """Files by their paths, slashes and all, and modules by their names."""
    for name, source in ((files or {}) | {f"{name}.py": source for name, source in modules.items()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return folder


# Found.


def test_a_function_of_a_file(own) -> None:
    code = find_code(f"{own('def f(): return 6 * 7')}:f")
    assert code.load()() == 42
    assert find_code(code) is code
    assert (code.name, code.source, code.siblings) == ("f", "def f(): return 6 * 7", ())


@pytest.mark.parametrize(
    "inner", ["from .other import V\ndef f(): return V", "from . import other as o\ndef f(): return o.V"]
)
def test_a_function_of_a_module(tmp_path, monkeypatch, inner: str) -> None:
    write(tmp_path / "parcel", __init__="", inner=inner, other="V = 5")
    monkeypatch.syspath_prepend(tmp_path)
    code = find_code("parcel.inner:f")
    assert (code.load()(), code.module) == (5, "parcel.inner")
    assert code.siblings == (("parcel/__init__.py", ""), ("parcel/other.py", "V = 5"))


def test_a_function_of_a_notebook_arrives_in_another_process() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("factor = 3\ndef f(): return factor * len(__import__('math').__name__)", namespace)
    code = find_code(namespace["f"])
    assert code.pickled and elsewhere(code) == "12"
    namespace["factor"] = 0
    assert code.load()() == 12


def test_a_function_imported_from_a_file_is_kept_as_its_source(tmp_path, monkeypatch) -> None:
    write(tmp_path, imported="def f(): return 'of a file'")
    monkeypatch.syspath_prepend(tmp_path)
    code = find_code(__import__("imported").f)
    assert not code.pickled and code.source == "def f(): return 'of a file'"
    assert elsewhere(code) == "of a file"


def test_lambdas_partials_and_local_functions_are_kept_as_pickles() -> None:
    def local(value: int = 3) -> int:
        return value

    for function in (lambda: 3, functools.partial(int, "3"), local):
        assert find_code(function).load()() == 3


def test_what_a_kept_pickle_imports_is_in_its_digest(tmp_path, monkeypatch) -> None:
    """It is imported again where the pickle is loaded, or when the function is called for the first time."""
    monkeypatch.syspath_prepend(write(tmp_path, helper="def width(): return 3\n", later="def depth(): return 2\n"))

    def inside() -> int:
        from later import depth  # type: ignore[import-not-found]

        return int(depth())

    assert "later.depth" in dict(find_code(inside).definitions)
    code = find_code(functools.partial(importlib.import_module("helper").width))
    assert [*dict(code.definitions)] == ["partial", "helper.width"]
    assert code.now() == code
    write(tmp_path, helper="def width(): return 4\n")
    assert code.now().changed(code) == ["helper.width"]
    assert code.now().digest != code.digest


CELLS = """
import abc, dataclasses, enum, torch
import roundweave as rw
WORDS, START = {"alpha", "beta", "gamma"}, torch.arange(3.0)
Kind = enum.Enum("Kind", "A B")

class Net(torch.nn.Module, abc.ABC):
    def forward(self, x, how="relu"):
        return START if how in {"relu", "tanh", "gelu"} and how not in WORDS else Kind.A

class Own(rw.Plugin):
    least: float = 0.5

@dataclasses.dataclass(frozen=True)
class Half(rw.Mean):
    by: float = 0.5
    def finish(self, state, node):
        return super().finish(state, node)
"""


def digests_of_cells(text: str, file: str) -> list[str]:
    """The digests of classes whose text stands in this process as in a notebook's kernel."""
    kernel: dict[str, Any] = {"__name__": "__main__", "__file__": file}
    exec(compile(text, file, "exec"), kernel)
    return [find_code(kernel[name]).digest for name in ("Net", "Own", "Half")]


def test_code_that_is_run_again_has_the_same_digest_in_every_kernel_and_at_every_place() -> None:
    """In processes whose sets are in other orders, beside a comment, and in files of other names."""
    comment = "# A comment." + chr(10)

    def told(seed: int, text: str, file: str) -> list[str]:
        line = [sys.executable, "-c", f"from {__name__} import *; print(*digests_of_cells({text!r}, {file!r}))"]
        environment = os.environ | {"PYTHONHASHSEED": f"{seed}"}
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert told(1, CELLS, "kernel_1/2.py") == told(2, f"{comment}{CELLS}", "kernel_2/3.py")
    assert digests_of_cells(CELLS, "kernel_2/3.py") == digests_of_cells(f"{comment}{CELLS}", "kernel_2/4.py")


@pytest.mark.parametrize(("old", "new"), [("3.0)", "4.0)"), ("alpha", "delta"), ("tanh", "silu"), ("0.5", "0.7")])
def test_what_changes_in_code_without_a_file_is_in_its_digest(old: str, new: str) -> None:
    before, after = (digests_of_cells(text, "1.py") for text in (CELLS, CELLS.replace(old, new)))
    changed = [one != other for one, other in zip(before, after, strict=True)]
    assert changed == ([False, True, True] if old == "0.5" else [True, False, False])


def test_a_pickle_of_another_python_is_refused_and_one_of_before_has_its_digest() -> None:
    code = find_code(lambda: 3)
    with pytest.raises(CodeError, match=r"<lambda>: Python 3\.2 kept it, and Python 3\.\d+ cannot run it$"):
        replace(code, python="3.2").load()
    before = replace(code, python="", definitions=())
    assert before.load()() == 3 and before.digest == json_digest([code.name, code.pickled])


def test_a_constant_that_was_set_in_the_process_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(write(tmp_path, mine="HIDDEN = 16\ndef width(): return HIDDEN\n"))
    module: Any = importlib.import_module("mine")
    assert find_code(module.width).load()() == 16
    module.HIDDEN = 256
    with pytest.raises(CodeError, match="HIDDEN is 256 in this process and 16 in the file, which runs; set it in"):
        find_code(module.width)


def test_what_reads_as_a_reference() -> None:
    texts = ("mine.py:f", "C:/mine.py:f", "package.module:f", "mlp", "mine.py", "mine.py:", "mine.py:f()", "")
    assert [text for text in texts if is_reference(text)] == [*texts[:3]]


# Kept.


def test_the_kept_source_survives_a_change_and_the_end_of_its_file(own) -> None:
    path = Path(own("def f(): return 'as it was'"))
    code = find_code(f"{path}:f")
    path.write_text("def f(): return 'changed'")
    assert elsewhere(code) == "as it was"
    path.unlink()
    assert elsewhere(code) == code.load()() == "as it was"


def test_the_digest_is_that_of_function_source_and_siblings_wherever_they_lie(tmp_path) -> None:
    source = "import helper\ndef f(): return helper.A\ndef g(): return 2"
    for folder, file, helper in (("one", "mine", "1"), ("moved", "renamed", "1"), ("other", "mine", "2")):
        write(tmp_path / folder, {f"{file}.py": source}, helper=f"A = {helper}")
    found = ("one/mine.py:f", "moved/renamed.py:f", "one/mine.py:g", "other/mine.py:f")
    one, moved, other_function, other_helper = (find_code(f"{tmp_path}/{each}").digest for each in found)
    assert one == moved
    assert one not in (other_function, other_helper)


def test_a_function_knows_the_place_of_its_file(tmp_path, monkeypatch) -> None:
    source = "def f(): return __file__"
    path = write(tmp_path / "sub", mine=source, __init__="") / "mine.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for reference in (f"{path}:f", "sub/mine.py:f", "sub.mine:f"):
        forget(lambda name: name.startswith("roundweave_code_"))
        found.append(find_code(reference).load()())
    assert found == [str(path)] * 3


def test_comments_may_change_in_the_file_and_beside_it_and_what_else_does_is_named(tmp_path) -> None:
    source = "import helper\ndef f(): return helper.used"
    folder = write(tmp_path / "with", mine=source, helper="used = 1")
    code = find_code(f"{folder}/mine.py:f")
    write(folder, mine=f"# more\n{source}", helper="used  =  1  # one")
    assert find_code(f"{folder}/mine.py:f").digest == code.digest
    write(folder, helper="used = 2")
    assert find_code(f"{folder}/mine.py:f").changed(code) == ["helper.used"]
    assert elsewhere(code) == "1"


# Siblings.


def test_modules_of_the_same_folder_are_kept_with_their_texts(tmp_path) -> None:
    beside = {
        "first.py": "import third\nvalue = third.value",
        "second.py": "value = 20",
        "third.py": "import first\nvalue = 1",
    }
    mine = "import json, first\ndef f():\n    from second import value\n    return first.value + value"
    folder = write(tmp_path / "with", beside, mine=mine, unused="value = 0")
    code = find_code(f"{folder}/mine.py:f")
    assert (code.siblings, code.load()(), elsewhere(code)) == ((*beside.items(),), 21, "21")


@pytest.mark.parametrize(
    ("folders", "mine"),
    [(("one", "two"), "mine.py"), (("one", "one"), "mine.py"), (("one", "two"), "proj/mine.py")],
    ids=["in two folders", "edited", "beside a package"],
)
def test_siblings_are_not_mistaken_for_each_other(tmp_path, folders, mine) -> None:
    """Edited as in a notebook that stays open; beside a package modules that Python finds elsewhere come first."""
    found, source = [], {"proj/__init__.py": "", mine: "import aid\ndef f(): return aid.value"}
    for name, value in zip(folders, (1, 222), strict=True):
        folder = write(tmp_path / name, source, aid=f"value = {value}")
        found.append(find_code(f"{folder}/{mine}:f").load()())
    assert found == [1, 222]


# Packages.

PACKAGE = {
    "proj/models/net.py": "from .layers import Wide\nfrom ..sizes import WIDTH\ndef f(): return Wide.name, WIDTH",
    "proj/models/layers.py": "class Wide:\n    name = 'wide'",
    "proj/sizes.py": "WIDTH = 8",
}
INIT = {"proj/__init__.py": "", "proj/models/__init__.py": ""}


@pytest.mark.parametrize(
    ("reference", "init"),
    but_first(
        [("proj/models/net.py:f", {}), ("proj.models.net:f", INIT)],
        [("proj/models/net.py:f", INIT), ("proj.models.net:f", {})],
    ),
)
def test_a_file_in_a_package_is_its_module(tmp_path, monkeypatch, init, reference) -> None:
    monkeypatch.chdir(write(tmp_path, PACKAGE | init))
    code = find_code(reference)
    assert code.load()() == ("wide", 8)
    assert {name for name, _ in code.siblings} == (PACKAGE | init).keys() - {"proj/models/net.py"}
    shutil.rmtree(tmp_path / "proj")
    assert elsewhere(code) == "('wide', 8)"


def test_the_main_file_of_a_package_is_its_module(tmp_path, monkeypatch) -> None:
    main = "from .models.net import f\nif __name__ == '__main__':\n    raise SystemExit(f())"
    monkeypatch.chdir(write(tmp_path, PACKAGE | INIT | {"proj/__main__.py": main}))
    assert elsewhere(find_code("proj.__main__:f")) == "('wide', 8)"


def test_a_package_may_import_itself_and_what_is_beside_it(tmp_path, monkeypatch) -> None:
    net = "import proj.models.layers, extra\nimport proj.sizes as s\nfrom proj import models\ndef f():\n"
    net += "    return proj.models.layers.Wide.name, s.WIDTH, models.layers.Wide.name, extra.X"
    monkeypatch.chdir(write(tmp_path, PACKAGE | INIT | {"proj/models/net.py": net}, extra="X = 1"))
    for reference in ("proj/models/net.py:f", "proj.models.net:f"):
        code = find_code(reference)
        assert code.load()() == ("wide", 8, "wide", 1)
        for file in ("proj/models/layers.py", "proj/sizes.py", "extra.py"):
            before = (tmp_path / file).read_text()
            (tmp_path / file).write_text(before.replace("8", "9").replace("1", "2").replace("wide", "narrow"))
            assert find_code(reference).digest != code.digest, file
            (tmp_path / file).write_text(before)
        assert find_code(reference).digest == code.digest
    assert elsewhere(code) == "('wide', 8, 'wide', 1)"


def test_a_package_resolves_the_relative_imports_of_its_own_init(tmp_path, monkeypatch) -> None:
    """As that of torchvision.models does, which does not even name `resnet18`."""
    files = {
        "vision/__init__.py": "from . import models",
        "vision/models/__init__.py": "from .alexnet import *\nfrom .resnet import *\nfrom . import quantized",
        "vision/models/alexnet.py": "def alexnet(): return 'alexnet'",
        "vision/models/resnet.py": "from .._registry import register\n@register\ndef resnet18(): return 'it'",
        "vision/models/quantized/__init__.py": "from ..resnet import resnet18",
        "vision/_registry.py": "K = {}\ndef register(f):\n  assert K.setdefault(f.__name__, f) is f\n  return f",
    }
    monkeypatch.chdir(write(tmp_path, files))
    for reference in ("vision.models:resnet18", "vision/models/__init__.py:resnet18"):
        code = find_code(reference)
        assert elsewhere(code) == "it"
        assert "vision.models.resnet.resnet18" in dict(code.definitions)


def test_a_package_that_is_installed_is_imported_as_it_is(tmp_path, monkeypatch) -> None:
    """It may register what it defines, which goes only once in a process."""
    files = {
        "vision/__init__.py": "__version__ = '1.5'\nK = []",
        "vision/models/__init__.py": "from .resnet import *",
        "vision/models/resnet.py": "from vision import K\nassert not K\ndef resnet18(): pass\nK += 'r'",
    }
    monkeypatch.syspath_prepend(write(tmp_path / "site-packages", files))
    code = find_code("vision.models:resnet18")
    installed = sys.modules["vision.models.resnet"].resnet18
    assert code.load() is find_code(installed).load() is installed
    assert (code.definitions, code.label) == ((("vision.models of vision", "1.5"),), "vision.models:resnet18")


def test_in_a_package_a_file_beside_is_found_by_its_name_alone(tmp_path) -> None:
    """As in a script; what else is called so comes first there, as in `backends/wave.py` that imports wave."""
    net = "import sizes, json, wave\ndef f(): return sizes.WIDTH, json.dumps(1), wave.__name__"
    wrong = dict.fromkeys(("json", "wave"), "raise RuntimeError")
    proj = write(tmp_path / "proj", __init__="", net=net, sizes="WIDTH = 8", **wrong)
    code = find_code(f"{proj}/net.py:f")
    shutil.rmtree(proj)
    assert elsewhere(code) == "(8, '1', 'wave')"


def test_objects_of_the_users_modules_pass_between_processes(tmp_path, monkeypatch) -> None:
    """Also those of a module that is imported only when the function is called."""
    net = "def f():\n    from .late import Late\n    return Late()"
    write(tmp_path / "proj", __init__="", net=net, late="class Late:\n    value = 3")
    monkeypatch.chdir(tmp_path)
    code = find_code("proj.net:f")
    sent = pickle.dumps((Ran((code,)), code.load()()))
    shutil.rmtree(tmp_path / "proj")
    assert said(sent, "[1].value") == "3"


# Refused.


def test_what_a_package_lacks_is_said_by_its_own_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(write(tmp_path, INIT | {"proj/models/net.py": "from .gone import f"}))
    with pytest.raises(CodeError, match=r"^proj\.models\.net:f: .*No module named 'proj\.models\.gone'$"):
        find_code("proj.models.net:f")


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


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("/nowhere/mine.py:f", "cannot read /nowhere/mine.py"),
        ("bytes.py:f", "cannot read"),
        ("nomodule_of_anybody.inner:f", r"no module 'nomodule_of_anybody\.inner'"),
        ("math:floor", "no module 'math' with Python source, here or installed"),
    ],
)
def test_a_place_that_is_not_there_or_is_no_text_is_named(tmp_path, monkeypatch, reference, reason: str) -> None:
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\xfd")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CodeError, match=reason):
        find_code(reference)
