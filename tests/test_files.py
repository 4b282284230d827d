"""Files as they are, and as they were before cpfix wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrator.files import Journal, before_cpfix, digest, files_of, find_in
from migrator.match import Found
from migrator.model import AppliedPatch, FileRecord
from tests.edits import FILE, hunk, patch

OLD, NEW = b"a\n", b"b\n"


def journal(root: Path, *, before: bytes = OLD, after: bytes = NEW, name: str = "p") -> Journal:
    applied = AppliedPatch("nemo", name, "one", "1.0")
    record = FileRecord(root, FILE, digest(before), digest(after), (applied,))
    return Journal({(root, FILE): record}, lambda _: before)


def write(root: Path, raw: bytes) -> None:
    (root / FILE).parent.mkdir(exist_ok=True)
    (root / FILE).write_bytes(raw)


def test_a_file_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    files = files_of(tmp_path, Journal({}, lambda _: b""))
    first = files(FILE)
    write(tmp_path, NEW)
    assert files(FILE) is first
    assert (first.raw, first.problem, first.record, first.intact) == (OLD, "", None, False)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda root: None, f"there is no {FILE}"),
        (lambda root: (root / "nemo").write_text("no folder"), f"there is no {FILE}"),
        (lambda root: (root / FILE).mkdir(parents=True), f"{FILE}: Is a directory"),
        (lambda root: write(root, b"\xff\n"), f"{FILE}: not readable as Python: "),
    ],
)
def test_what_cannot_be_read_has_a_problem(tmp_path: Path, make: object, problem: str) -> None:
    assert callable(make)
    make(tmp_path)
    file = files_of(tmp_path, Journal({}, lambda _: b""))(FILE)
    assert file.module is None
    assert file.problem.startswith(problem)
    finding = find_in(hunk("-a\n+b"), lambda _: file)
    assert (finding.found, finding.reason) == (Found.NEITHER, file.problem)


def test_no_python_is_told_when_it_is_searched(tmp_path: Path) -> None:
    write(tmp_path, b"x = = 1\n")
    finding = find_in(hunk("-a\n+b"), files_of(tmp_path, Journal({}, lambda _: b"")))
    assert finding.found is Found.NEITHER
    assert finding.reason.startswith(f"{FILE}: not readable as Python: invalid syntax")


def test_intact_is_what_cpfix_wrote(tmp_path: Path) -> None:
    for raw, intact in ((NEW, True), (OLD, False), (NEW + b"# mine\n", False)):
        write(tmp_path, raw)
        assert files_of(tmp_path, journal(tmp_path))(FILE).intact is intact
    (tmp_path / FILE).unlink()
    assert not files_of(tmp_path, journal(tmp_path))(FILE).intact


def test_before_cpfix(tmp_path: Path) -> None:
    write(tmp_path, NEW)
    known = journal(tmp_path)
    then = before_cpfix(files_of(tmp_path, known), known)
    assert then(FILE).raw == OLD
    assert then(FILE) is then(FILE)
    assert find_in(hunk("-a\n+b"), then).found is Found.TO_DO
    write(tmp_path, NEW + b"c\n")  # somebody else's work stays
    then = before_cpfix(files_of(tmp_path, known), known)
    assert then(FILE).raw == NEW + b"c\n"


def test_the_journal_knows_a_patch_by_root_and_name(tmp_path: Path) -> None:
    known = journal(tmp_path)
    found = known.knows(patch("p"), tmp_path)
    assert found is not None
    assert found.cpfix == "1.0"
    assert known.knows(patch("q"), tmp_path) is None
    assert known.knows(patch("p", project="megatron-core"), tmp_path) is None
    assert known.knows(patch("p"), tmp_path / "elsewhere") is None
