"""Asking an interpreter for its search path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from migrator.interpreter import running_search_path, search_path_of
from migrator.model import EnvironmentRefuses
from tests.trees import make_venv


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_another_interpreter_tells_its_own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, site = make_venv(tmp_path / "venv")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clone"))
    path = search_path_of(str(python))
    assert path[0] == str(tmp_path / "clone")
    assert str(site) in path
    assert "" not in path
    assert not any(Path(entry).is_relative_to(sys.prefix) for entry in path if sys.prefix != sys.base_prefix)


def test_site_packages_that_pythonpath_names_stand_behind_the_library_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, site = make_venv(tmp_path / "venv")
    monkeypatch.setenv("PYTHONPATH", str(site))
    path = search_path_of(str(python))
    assert (path[0], path[-1]) == (str(site), str(site))


def test_what_a_sitecustomize_prints_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, site = make_venv(tmp_path / "venv")
    (site / "sitecustomize.py").write_text(
        "import atexit\nprint('hello', end='')\natexit.register(print, 'bye')\n"
    )
    assert str(site) in search_path_of(str(python))


def test_the_running_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    assert running_search_path() == ["", "/elsewhere"]


def test_a_missing_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefuses, match=r"no-python cannot be run: No such file"):
        search_path_of(str(tmp_path / "no-python"))


def test_what_is_no_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefuses, match=r"exit code 3\): broken loader"):
        search_path_of(script(tmp_path / "python", "echo warning; echo broken loader >&2; exit 3"))
    with pytest.raises(EnvironmentRefuses, match=r"exit code 0\): hello"):
        search_path_of(script(tmp_path / "python", "echo hello"))
    with pytest.raises(EnvironmentRefuses, match="cannot be run"):
        search_path_of(str(tmp_path))


def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefuses, match=r"within 0\.2 s"):
        search_path_of(script(tmp_path / "python", "exec sleep 60"), timeout=0.2)


def test_a_name_on_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, site = make_venv(tmp_path / "venv")
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    assert str(site) in search_path_of("python")
