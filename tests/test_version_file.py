"""read_version on every shape that upstream ships, and on ones that it must not guess at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import fetch
from migrator.version_file import read_version, same_version
from tests.trees import PROJECTS

CONSTANTS = b"MAJOR = 2\nMINOR = 5\nPATCH = 3\nPRE_RELEASE = %s\n"


@pytest.mark.parametrize(
    ("suffix", "version"),
    [
        (b"''", "2.5.3"),
        (b'"rc0"', "2.5.3rc0"),
        (b"'rc0.dev102440'", "2.5.3rc0.dev102440"),
        (b"'+nv25.9'", "2.5.3+nv25.9"),
    ],
)
def test_constants(suffix: bytes, version: str) -> None:
    assert read_version(CONSTANTS % suffix) == (version, "")


def test_a_literal_version_wins() -> None:
    assert read_version(CONSTANTS % b"''" + b"__version__: str = '2.5.4'\n") == ("2.5.4", "")
    assert read_version(b"\xef\xbb\xbf__version__ = '0.4.0'\r\n") == ("0.4.0", "")


def test_what_is_computed_at_import_time_is_left_out() -> None:
    source = CONSTANTS % b"''" + (
        b"__version__ = '.'.join(map(str, VERSION[:3]))\n"
        b"import os\n"
        b"if not os.getenv('NO_VCS_VERSION'):\n    __version__ = '9.9.9'\n    __version__ += '+0d8e071'\n"
        b"try:\n    __version__ = version('nemo')\nexcept Exception:\n    __version__ = '8.8.8'\n"
    )
    assert read_version(source) == ("2.5.3", "")


def test_the_last_assignment_counts() -> None:
    assert read_version(CONSTANTS % b"'rc0'" + b"PRE_RELEASE = ''\n") == ("2.5.3", "")
    assert read_version(CONSTANTS % b"''" + b"MINOR = compute()\n")[0] == ""


@pytest.mark.parametrize(
    ("source", "version", "note"),
    [
        (b"", "", "neither __version__ nor MAJOR"),
        (b"MAJOR = 2\nMINOR = 5\n", "", "neither __version__ nor MAJOR"),
        (b"MAJOR = '2'\nMINOR = 5\nPATCH = 3\n", "", "neither __version__ nor MAJOR"),
        (b"MAJOR = True\nMINOR = 5\nPATCH = 3\n", "", "neither __version__ nor MAJOR"),
        (CONSTANTS % b"os.environ['PRE']", "2.5.3", "PRE_RELEASE is not a literal"),
        (CONSTANTS % b"'-our fork'", "2.5.3", "'2.5.3-our fork' is not a version"),
        (b"__version__ = 'unknown'\n", "", "'unknown' is not a version"),
        (b"<<<<<<< HEAD\n", "", "not valid Python"),
        (b"\0", "", "not valid Python"),
    ],
)
def test_what_cannot_be_read_is_said(source: bytes, version: str, note: str) -> None:
    found = read_version(source)
    assert found[0] == version
    assert note in found[1]


def test_nothing_is_executed(tmp_path: Path) -> None:
    read_version(f"open({str(tmp_path / 'ran')!r}, 'w')\n__version__ = '1.0'\n".encode())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.15.0", "0.15.0+0d8e071", True),
        ("2.5.0rc0", "2.5.0-rc.0", True),
        ("2.5.0", "2.5.0rc0", False),
        ("0.16.0rc0", "0.16.0rc0.dev102440", False),
        ("fork", "fork", True),
        ("fork", "1.0", False),
    ],
)
def test_same_version(one: str, other: str, same: bool) -> None:
    assert same_version(one, other) is same


def test_every_locked_wheel(upstream: Callable[[str, str], Path]) -> None:
    files = {project.name: project.version_file for project in PROJECTS}
    for wheel in fetch.lock():
        source = (upstream(wheel.project, wheel.version) / files[wheel.project]).read_bytes()
        assert read_version(source) == (wheel.version, ""), wheel
