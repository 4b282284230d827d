"""What patches add passes upstream's own formatters, on the lines that they touch.

ruff stands in for upstream's black and isort (NeMo, Megatron-LM); Megatron-Bridge runs ruff itself.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from migrator import __version__, plan, series
from migrator.model import Install
from tests.clones import wheel

pytestmark = pytest.mark.upstream

# the settings of their pyproject.toml or ruff.toml, the same at every tag from 0.12 / 2.3 / 0.1 on
SETTINGS = {
    "nemo": ['format.quote-style = "preserve"', 'lint.isort.known-first-party = ["nemo"]'],
    "megatron-core": [
        'format.quote-style = "preserve"',
        "format.skip-magic-trailing-comma = true",
        'lint.isort.known-first-party = ["megatron"]',
        "lint.isort.split-on-trailing-comma = false",
    ],
    "megatron-bridge": [
        'lint.isort.known-first-party = ["megatron.bridge"]',
        'lint.isort.known-third-party = ["megatron.core", "megatron", "torch", "numpy"]',
        "lint.isort.lines-after-imports = 2",
    ],
}
LINE_LENGTHS = {"nemo": 119, "megatron-core": 100, "megatron-bridge": 119}
# each shape of the patched functions
VERSIONS = {
    "nemo": ("2.3.0", "2.3.3", "2.4.0", "2.5.0rc0", "2.5.3", "2.6.2", "2.7.3"),
    "megatron-core": ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1"),
    "megatron-bridge": (
        *("0.1.0rc1", "0.1.0rc4", "0.2.0rc0", "0.2.0rc6"),
        *("0.3.0", "0.3.1", "0.4.2", "0.5.0", "0.5.1", "0.6.2"),
    ),
}


def formatted(project: str, folder: Path) -> None:
    """Format and sort every file below `folder` in place."""
    settings = [f"line-length = {LINE_LENGTHS[project]}", 'target-version = "py310"', *SETTINGS[project]]
    options = ["--isolated", "--quiet", *(part for s in settings for part in ("--config", s))]
    for command in (["check", "--select=I", "--fix"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, *options, str(folder)]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout


def patched(project: str, version: str) -> Iterator[tuple[str, str, str]]:
    """Path, old and new text of each file that all patches, the optional ones too, change in a wheel."""
    everything = series.load()
    root = wheel(project, version)
    journal = plan.Journal({}, lambda record: b"")
    what = everything.project(project)
    install = Install(project, what.distribution, version, root, "wheel", False, False)
    patches = tuple(replace(p, default=True) for p in everything.of(project))
    files = plan.files_of(root, journal)
    states = plan.inspect(install, what, patches, journal, files)
    assert not [s for s in states if s.state.is_error]
    for change in plan.changes(install, patches, states, journal, files, __version__):
        yield change.path, change.old.decode(), change.new.decode()


def touched(old: Sequence[str], new: Sequence[str]) -> set[int]:
    """The rows of `new` that are not in `old`."""
    rows: set[int] = set()
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        rows |= set(range(start, end)) if tag != "equal" else set()
    return rows


def violations(old: str, new: str, clean: str) -> list[str]:
    """What a formatter changes of the rows that `new` adds to `old`; `clean` is `new`, formatted."""
    before, after, good = old.splitlines(), new.splitlines(), clean.splitlines()
    mine = touched(before, after)
    found = []
    for tag, start, end, first, last in difflib.SequenceMatcher(
        None, after, good, autojunk=False
    ).get_opcodes():
        around = set(range(start, end)) or {start - 1, start}
        if tag != "equal" and around & mine:
            found.append(f"row {start + 1}: {after[start:end]} should be {good[first:last]}")
    return found


@pytest.mark.parametrize("project", VERSIONS)
def test_touched_rows_are_formatted_and_short(project: str, tmp_path: Path) -> None:
    everything = {
        tmp_path / version / path: (old, new)
        for version in VERSIONS[project]
        for path, old, new in patched(project, version)
    }
    for file, (_, new) in everything.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(new, newline="")
    formatted(project, tmp_path)
    wrong = []
    for file, (old, new) in everything.items():
        name = file.relative_to(tmp_path).as_posix()
        wrong += [f"{name}, {row}" for row in violations(old, new, file.read_text())]
        rows = new.splitlines()
        for number in sorted(touched(old.splitlines(), rows)):
            if len(rows[number]) > LINE_LENGTHS[project]:
                wrong.append(f"{name}, row {number + 1} has {len(rows[number])} columns: {rows[number]}")
    assert not wrong, "\n".join(wrong)
    assert everything


@pytest.mark.parametrize("project", VERSIONS)
def test_new_tests_are_formatted_and_short(project: str, tmp_path: Path) -> None:
    tests = [test for patch in series.load().of(project) for test in patch.tests]
    for test in tests:
        (tmp_path / Path(test.source).name).write_text(test.text)
    formatted(project, tmp_path)
    for test in tests:
        assert (tmp_path / Path(test.source).name).read_text() == test.text, test.source
        assert max(map(len, test.text.splitlines())) <= LINE_LENGTHS[project], test.source


def test_the_series_knows_the_line_lengths() -> None:
    assert {p.name: p.contribution.line_length for p in series.load().projects} == LINE_LENGTHS


def test_a_violation_is_seen(tmp_path: Path) -> None:
    old = "import os\n\n\ndef f(a):\n    return   os.sep + a\n"
    new = "import os\nimport ast\n\n\ndef f(a):\n    x = { 'a':a }\n    return   os.sep + a\n"
    (tmp_path / "f.py").write_text(new)
    formatted("nemo", tmp_path)
    rows = violations(old, new, (tmp_path / "f.py").read_text())
    assert len(rows) == 2
    assert "import ast" in rows[0]
    assert "x = {'a': a}" in rows[1]
    assert not violations(old, old, old.replace("   os", " os"))
