"""`journal.json`: what cpfix has written below one import root, and when. Reading neither locks nor writes.

    {
      "format": 1,
      "files": {
        "nemo/collections/llm/gpt/model/base.py": {        posix path below the import root: images move
          "before": "<sha256>",                            the original, kept in originals/<sha256>
          "after": "<sha256>",                             what cpfix wrote
          "patches": [{"project": "nemo", "id": "thd-split", "fingerprint": "<sha256>", "cpfix": "1.0.0"}]
        }
      },
      "history": [                                         oldest first
        {"time": "2025-10-01T12:00:00Z", "command": "cpfix apply", "cpfix": "1.0.0",
         "files": ["nemo/..."], "applied": ["nemo/thd-split"], "removed": []}
      ]
    }

The file goes when its last record goes, and the history with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from migrator.ledger import document, state
from migrator.model import AppliedPatch, FileRecord


@dataclass(frozen=True)
class Entry:
    """One past transaction, as far as it touched this import root."""

    time: str  # UTC, "2025-10-01T12:00:00Z"
    command: str
    cpfix: str  # version
    files: tuple[str, ...]  # posix paths below the import root
    applied: tuple[str, ...]  # "project/id": came, or came in a new version
    removed: tuple[str, ...]  # "project/id": went, or went in an old version


@dataclass(frozen=True)
class Journal:
    """The journal of one import root."""

    files: Mapping[str, FileRecord] = field(default_factory=dict)  # by path
    history: tuple[Entry, ...] = ()


def records(root: Path) -> dict[str, FileRecord]:
    """What is known of the files below an import root, by posix path; {} where cpfix has written nothing.

    Raises CannotApply where the journal is damaged or of another format, EnvironmentRefuses where it may
    not be read.
    """
    return dict(read(root).files)


def history(root: Path) -> list[Entry]:
    """The transactions that led to what is applied now, oldest first. Errors as for `records`."""
    return list(read(root).history)


def original(root: Path, record: FileRecord) -> bytes:
    """The bytes that a file held before cpfix first touched it. Raises CannotApply where they are lost."""
    return state.kept(state.state_dir(root), record.before)


def read(root: Path) -> Journal:
    """The journal of an import root, empty where there is none. Errors as for `records`."""
    root = root.resolve()
    path = state.state_dir(root) / state.JOURNAL
    remedy = f"Reinstall the packages that are patched below {root}, then delete {path.parent}."
    return document.load(path, lambda data: _parse(root, data), remedy) or Journal()


def render(journal: Journal) -> bytes | None:
    """The file's bytes; None for a journal without records, whose file has to go."""
    if not journal.files:
        return None
    files = {path: _plain(record) for path, record in sorted(journal.files.items())}
    return document.dump({"files": files, "history": [asdict(entry) for entry in journal.history]})


def referenced(journal: Journal) -> set[str]:
    """The hashes of the originals that the records need."""
    return {record.before for record in journal.files.values()}


def _plain(record: FileRecord) -> dict[str, object]:
    patches = [asdict(patch) for patch in record.patches]
    return {"before": record.before, "after": record.after, "patches": patches}


def _parse(root: Path, data: dict[str, object]) -> Journal:
    files = {
        document.below(path): FileRecord(
            root=root,
            path=path,
            before=document.digest(item["before"]),
            after=document.digest(item["after"]),
            patches=tuple(_patch(patch) for patch in document.tables(item["patches"])),
        )
        for path, item in (
            (path, document.table(item)) for path, item in document.table(data["files"]).items()
        )
    }
    return Journal(files, tuple(_entry(item) for item in document.tables(data["history"])))


def _patch(data: dict[str, object]) -> AppliedPatch:
    return AppliedPatch(
        project=document.text(data["project"]),
        id=document.text(data["id"]),
        fingerprint=document.text(data["fingerprint"]),
        cpfix=document.text(data["cpfix"]),
    )


def _entry(data: dict[str, object]) -> Entry:
    return Entry(
        time=document.text(data["time"]),
        command=document.text(data["command"]),
        cpfix=document.text(data["cpfix"]),
        files=document.texts(data["files"]),
        applied=document.texts(data["applied"]),
        removed=document.texts(data["removed"]),
    )
