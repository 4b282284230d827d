"""Compiled files that would hide a changed source."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from migrator import ledger
from migrator.ledger.bytecode import compiled
from migrator.model import AppliedPatch, FileChange


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "pkg" / "__pycache__").mkdir(parents=True)
    file = tmp_path / "pkg" / "core.py"
    file.write_text("x = 1\n")
    return file


def touch(folder: Path, *names: str) -> list[Path]:
    files = [folder / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    return files


def test_every_interpreter_and_level(source: Path) -> None:
    folder = source.parent / "__pycache__"
    mine = touch(
        folder,
        "core.cpython-310.pyc",
        "core.cpython-312.opt-1.pyc",
        "core.cpython-312.opt-2.pyc",
        "core.pypy39.pyc",
    )
    touch(folder, "core_v2.cpython-312.pyc", "score.cpython-312.pyc", "core.cpython-312.txt")
    assert list(compiled(source)) == sorted(mine)


def test_none(source: Path) -> None:
    assert compiled(source) == ()
    assert compiled(source.with_name("nowhere") / "core.py") == ()
    touch(source.parent / "__pycache__", "data.cpython-312.pyc")
    assert compiled(source.with_name("data.toml")) == ()


def test_cache_prefix(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "prefix"))
    far = tmp_path / "prefix" / source.parent.relative_to("/")
    mine = touch(far, "core.cpython-312.pyc") + touch(source.parent / "__pycache__", "core.cpython-312.pyc")
    assert set(compiled(source)) == set(mine)


def test_both_ends_of_a_symlink(source: Path, tmp_path: Path) -> None:
    link = tmp_path / "links" / "core.py"
    link.parent.mkdir()
    link.symlink_to(source)
    mine = touch(source.parent / "__pycache__", "core.cpython-312.pyc")
    mine += touch(link.parent / "__pycache__", "core.cpython-312.pyc")
    assert set(compiled(link)) == set(mine)


@pytest.mark.parametrize("invalidation", list(py_compile.PycInvalidationMode))
def test_python_runs_what_was_written(source: Path, invalidation: py_compile.PycInvalidationMode) -> None:
    root = source.parents[1]
    patches = (AppliedPatch("nemo", "x", "1", "1.0.0"),)
    for old, new, applied in ((b"x = 1\n", b"x = 2\n", patches), (b"x = 2\n", b"x = 1\n", ())):
        py_compile.compile(str(source), invalidation_mode=invalidation)
        change = FileChange(root, "pkg/core.py", old=old, new=new, original=b"x = 1\n", patches=applied)
        ledger.commit([change], "cpfix", "1.0.0")
        command = [sys.executable, "-c", "import pkg.core; print(f'x = {pkg.core.x}')"]
        assert subprocess.check_output(command, cwd=root) == new
