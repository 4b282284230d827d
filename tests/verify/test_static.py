"""Static checks on small trees: each defect is named, sound code passes."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from pathlib import Path

import pytest

from migrator.verify import static
from migrator.verify.check import Check

UTILS = "megatron/core/utils.py"
PACKING = "nemo/collections/llm/gpt/data/packed_sequence.py"
TUNING = "nemo/collections/llm/gpt/data/fine_tuning.py"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An import root at the front of the path, with modules that fit together."""
    write(tmp_path, UTILS, "import math\n\n\ndef area(r: float) -> float:\n    return math.pi * r\n")
    write(tmp_path, PACKING, "def pack(size, *, mult=1):\n    return size * mult\n")
    write(
        tmp_path,
        TUNING,
        "from nemo.collections.llm.gpt.data.packed_sequence import pack\n\n\nclass Module:\n"
        "    def prepare(self):\n        return pack(1, mult=2)\n",
    )
    (tmp_path / "nemo/__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    return tmp_path


def write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def statuses(root: Path, *files: Path) -> dict[str, Check]:
    return {check.name.removeprefix("static: "): check for check in static.check_static([root], files)}


def test_sound_modules_pass(root: Path) -> None:
    assert {check.status for check in statuses(root).values()} == {"passed"}
    assert len(statuses(root)) == 5


def test_an_empty_root_is_not_a_pass(tmp_path: Path) -> None:
    assert [check.status for check in static.check_static([tmp_path])] == ["not run"]


def test_a_syntax_error(root: Path) -> None:
    write(root, UTILS, "def area(r:\n")
    check = statuses(root)["files compile"]
    assert (check.status, check.measured) == ("failed", 1.0)
    assert UTILS in check.detail


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def f(x: Any) -> None: ...\n", "Any"),
        ("def f():\n    return math.pi\n", "math"),
        ("class A:\n    def f(self):\n        return [np.zeros(n) for n in range(3)]\n", "np"),
        ("@cache\ndef f(): ...\n", "cache"),
        ("x = later\n", "later"),
    ],
)
def test_an_undefined_name(root: Path, text: str, name: str) -> None:
    write(root, UTILS, text)
    check = statuses(root)["every name is defined"]
    assert (check.status, check.detail) == ("failed", f"{UTILS}: {name}")


@pytest.mark.parametrize(
    "text",
    [
        "from os.path import *\n\n\ndef f():\n    return join('a', 'b')\n",
        "try:\n    import np\nexcept ImportError:\n    np = None\n\n\ndef f():\n    return np\n",
        "def f():\n    global made\n    made = 1\n\n\ndef g():\n    return made\n",
        "class A:\n    x = 1\n    y = [n for n in (x, 2)]\n\n    def f(self):\n        return __class__\n",
        "def f():\n    return [n for n in (m := [1])], m\n",
        "for i in range(3):\n    pass\n\n\ndef f():\n    return i\n",
        "def f(x):\n    def g():\n        nonlocal x\n        x = 1\n    return g, __file__\n",
    ],
)
def test_no_name_is_called_undefined_that_is_not(root: Path, text: str) -> None:
    write(root, UTILS, text)
    assert statuses(root)["every name is defined"].status == "passed"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("pack(1, multiple=2)", "has no parameter 'multiple'"),
        ("pack()", "lacks the argument 'size'"),
        ("pack(1, 2)", "takes 1 positional arguments, not 2"),
    ],
)
def test_a_call_that_does_not_fit(root: Path, call: str, why: str) -> None:
    text = (root / TUNING).read_text().replace("pack(1, mult=2)", call)
    write(root, TUNING, text)
    check = statuses(root)["calls between them fit"]
    assert (check.status, check.detail) == ("failed", f"{TUNING}:6: pack() {why}")


@pytest.mark.parametrize("call", ["pack(*a)", "pack(**a)", "pack(size=1)", "self.pack(1, 2, 3)"])
def test_calls_that_may_fit(root: Path, call: str) -> None:
    write(root, TUNING, (root / TUNING).read_text().replace("pack(1, mult=2)", call))
    assert statuses(root)["calls between them fit"].status == "passed"


def test_byte_code_of_other_source_with_the_same_size_and_time(root: Path) -> None:
    file = root / UTILS
    before = file.stat()
    py_compile.compile(str(file))
    assert statuses(root)["no stale byte code"].status == "passed"
    file.write_text(file.read_text().replace("math.pi * r", "math.pi + r"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert statuses(root)["no stale byte code"].status == "failed"


def test_byte_code_that_is_never_compared_with_its_source(root: Path) -> None:
    file = root / UTILS
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    file.write_text(file.read_text() + "\n\ndef more():\n    return 1\n")
    assert statuses(root)["no stale byte code"].status == "failed"


def test_byte_code_that_python_would_not_use(root: Path) -> None:
    file = root / UTILS
    py_compile.compile(str(file))
    py_compile.compile(str(root / PACKING), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    for path in (file, root / PACKING):
        path.write_text(path.read_text() + "\n\ndef more():\n    return 1\n")
    assert statuses(root)["no stale byte code"].status == "passed"


def test_a_copy_in_front_on_the_path(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    write(other, UTILS, "x = 1\n")
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    check = statuses(root)["these files are the ones imported"]
    assert check.status == "failed"
    assert str(other / UTILS) in check.detail


def test_a_package_that_hides_the_namespace(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    write(other, "megatron/__init__.py", "")
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    check = statuses(root)["these files are the ones imported"]
    assert (check.status, check.measured) == ("failed", 1.0)
    assert "nowhere" in check.detail


def test_files_that_were_written_are_looked_at_too(root: Path) -> None:
    extra = write(root, "nemo/collections/llm/other.py", "x = undefined\n")
    assert statuses(root)["every name is defined"].status == "passed"
    assert statuses(root, extra)["every name is defined"].status == "failed"
