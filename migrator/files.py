"""The files below an import root as they are now, and as the journal remembers them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from migrator.match import Finding, Found, find, holds
from migrator.model import AppliedPatch, Edit, FileRecord, Patch, Probe
from migrator.source import Module, Unreadable, skim


@dataclass(frozen=True)
class Journal:
    """What the ledger remembers, as far as planning needs it."""

    records: Mapping[tuple[Path, str], FileRecord]  # by import root and path below it
    original: Callable[[FileRecord], bytes]

    def knows(self, patch: Patch, root: Path) -> AppliedPatch | None:
        """The patch as it was applied below this root, if it was."""
        for (where, _), record in self.records.items():
            for applied in record.patches:
                if where == root and applied.name == patch.name:
                    return applied
        return None


@dataclass(frozen=True)
class File:
    """One file as it is on disk now."""

    path: str
    raw: bytes | None  # None where there is no such file
    module: Module | None
    problem: str = ""
    record: FileRecord | None = None

    @property
    def intact(self) -> bool:
        """It holds exactly what cpfix wrote."""
        return self.record is not None and self.raw is not None and digest(self.raw) == self.record.after


Files = Callable[[str], File]


def digest(raw: bytes) -> str:
    """sha256 in hexadecimal."""
    return hashlib.sha256(raw).hexdigest()


def files_of(root: Path, journal: Journal) -> Files:
    """A reader of the files below an import root that reads and parses each of them once."""
    read: dict[str, File] = {}

    def file(path: str) -> File:
        if path not in read:
            read[path] = _read(root, path, journal.records.get((root, path)))
        return read[path]

    return file


def _read(root: Path, path: str, record: FileRecord | None) -> File:
    try:
        raw = (root / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return File(path, None, None, f"there is no {path}", record)
    except OSError as error:
        return File(path, None, None, f"{path}: {error.strerror}", record)
    return _parsed(File(path, raw, None, "", record))


def _parsed(file: File) -> File:
    try:
        return replace(file, module=skim(file.raw or b""), problem="")
    except Unreadable as error:
        return replace(file, module=None, problem=f"{file.path}: {error}")


def before_cpfix(files: Files, journal: Journal) -> Files:
    """The files as they were before cpfix wrote them, where nobody else has written them since."""
    read: dict[str, File] = {}

    def file(path: str) -> File:
        now = files(path)
        if now.record is None or not now.intact:
            return now
        if path not in read:
            read[path] = _parsed(replace(now, raw=journal.original(now.record)))
        return read[path]

    return file


def holds_in(probe: Probe, files: Files) -> bool:
    """Whether a probe finds upstream's own fix in its file."""
    module = files(probe.file).module
    try:
        return module is not None and holds(probe, module)
    except Unreadable:
        return False


def find_in(edit: Edit, files: Files) -> Finding:
    """Look for an edit in its file."""
    file = files(edit.file)
    try:
        return find(edit, file.module) if file.module else Finding(Found.NEITHER, file.problem)
    except Unreadable as error:
        return Finding(Found.NEITHER, f"{file.path}: {error}")
