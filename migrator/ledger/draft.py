"""A transaction worked out in memory: which files, journals and backups. Reads and checks, writes nothing."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrator.ledger import disk, document, journal, recovery, state
from migrator.ledger.journal import Entry, Journal
from migrator.ledger.transaction import Header, Part, Step
from migrator.model import CannotApply, FileChange, FileRecord


@dataclass(frozen=True)
class Draft:
    """The share of one import root, with the bytes that it needs."""

    part: Part
    contents: Mapping[Path, bytes]  # of each temporary file
    keep: tuple[bytes, ...]  # backups and originals, to be stored before anything is touched


def draft(changes: Sequence[FileChange], command: str, cpfix_version: str) -> tuple[Draft, ...]:
    """Work out a transaction, the coordinator first; () where all is so already.

    Raises CannotApply where the changes don't fit the disk, ValueError where they don't make sense.
    """
    _check(changes)
    effective: dict[Path, list[FileChange]] = {}
    journals = {root: journal.read(root) for root in sorted({change.root.resolve() for change in changes})}
    for change in changes:
        root = change.root.resolve()
        if change.old != change.new or journals[root].files.get(change.path) != _record(change):
            effective.setdefault(root, []).append(change)
    waiting = recovery.pending(effective)
    if waiting:
        raise CannotApply(" ".join(waiting))
    roots = tuple(sorted(effective))
    header = _header(command, cpfix_version)
    return tuple(_share(header, root, roots, journals[root], effective[root]) for root in roots)


def _share(
    header: Header, root: Path, roots: tuple[Path, ...], old: Journal, changes: Sequence[FileChange]
) -> Draft:
    stem = f".cpfix-{header.id}-{roots.index(root)}"  # roots may share a folder by symlinks
    written = [change for change in changes if change.old != change.new]
    files = [
        _step(change.target, f"{stem}-{number}", change.old, change.new)
        for number, change in enumerate(written)
    ]
    path = state.state_dir(root) / state.JOURNAL
    before = path.read_bytes() if path.exists() else None
    after = journal.render(_after(old, changes, header))
    book = _step(path, stem, before, after)

    contents = {step.temp: change.new for step, change in zip(files, written, strict=True)}
    if after is not None:
        contents[book.temp] = after
    keep = [change.old for change in written] + [change.original for change in changes if change.patches]
    if before is not None:
        keep.append(before)
    return Draft(Part(header, root, roots, tuple(files), book), contents, tuple(dict.fromkeys(keep)))


def _step(target: Path, temp: str, old: bytes | None, new: bytes | None) -> Step:
    return Step(
        target=target,
        temp=target.resolve().parent / temp,
        old="" if old is None else disk.digest(old),
        new="" if new is None else disk.digest(new),
    )


def _after(old: Journal, changes: Sequence[FileChange], header: Header) -> Journal:
    files = dict(old.files)
    for change in changes:
        record = _record(change)
        if record is None:
            files.pop(change.path, None)
        else:
            files[change.path] = record
    before, after = _versions(old.files.values()), _versions(files.values())
    entry = Entry(
        time=header.time,
        command=header.command,
        cpfix=header.cpfix,
        files=tuple(sorted(change.path for change in changes)),
        applied=tuple(sorted({name for name, _ in after - before})),
        removed=tuple(sorted({name for name, _ in before - after})),
    )
    return Journal(files, (*old.history, entry))


def _versions(records: Iterable[FileRecord]) -> set[tuple[str, str]]:
    return {(patch.name, patch.fingerprint) for record in records for patch in record.patches}


def _record(change: FileChange) -> FileRecord | None:
    if not change.patches:
        return None
    before, after = disk.digest(change.original), disk.digest(change.new)
    return FileRecord(change.root.resolve(), change.path, before, after, change.patches)


def _header(command: str, cpfix_version: str) -> Header:
    return Header(
        id=os.urandom(8).hex(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=command,
        cpfix=cpfix_version,
        process=f"{os.getpid()} on {os.uname().nodename}",
    )


def _check(changes: Sequence[FileChange]) -> None:
    seen: dict[tuple[object, ...], Path] = {}
    for change in changes:
        document.below(change.path)
        if not change.patches and change.new != change.original:
            raise ValueError(f"{change.path}: without patches a file has to get its original back")
        for key in _identities(change.target):
            if key in seen:
                raise CannotApply(
                    f"{change.target} and {seen[key]} are one file, which cannot be written twice."
                )
            seen[key] = change.target
        if change.target.read_bytes() != change.old:
            raise CannotApply(f"{change.target} was changed by somebody else just now. Run cpfix again.")


def _identities(target: Path) -> list[tuple[object, ...]]:
    """What makes two paths one file. Raises CannotApply where there is no regular file."""
    try:
        real = target.resolve(strict=True)
        info = real.stat()
    except (OSError, RuntimeError) as error:
        raise CannotApply(f"{target} is not there any more ({error}). Run cpfix again.") from error
    if not stat.S_ISREG(info.st_mode):
        raise CannotApply(f"{target} is no regular file, so it is left alone.")
    # Hard links are two files as soon as one is replaced; one name at two places is a mount.
    return [(real,)] if info.st_nlink > 1 else [(real,), (info.st_dev, info.st_ino)]
