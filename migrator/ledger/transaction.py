"""`transaction.json`: the write-ahead record of a transaction that has not ended.

Every state directory that takes part holds one. It names the files below its own import root, and all roots:

    {
      "format": 1,
      "id": "9f2c41d7a0b3e856",
      "time": "2025-10-01T12:00:00Z", "command": "cpfix apply", "cpfix": "1.0.0", "process": "412 on node7",
      "roots": [".", "../../NeMo"],            relative to this import root; the first one is the coordinator
      "committed": false,                      only the coordinator's word counts
      "files": [
        {"path": "nemo/...", "temp": ".cpfix-9f2c41d7a0b3e856-0-0", "old": "<sha256>", "new": "<sha256>"}
      ],
      "journal": {"temp": ".cpfix-9f2c41d7a0b3e856-0", "old": "", "new": "<sha256>"}    "" means: no such file
    }

`temp` is a name beside the real file; the bytes of `old` are in originals/. The records are written before
the first file is touched, the coordinator's last. The one rename that makes the coordinator's say
`committed` commits the transaction. Then the records go, the coordinator's last. So, whenever a record is
found:

- the coordinator's record is missing or of another transaction: nothing was touched yet, undo (to no effect);
- it says `committed: false`: undo what any of the roots that still have their record hold;
- it says `committed: true`: everything is in place, only the records are to be removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from migrator.ledger import disk, document, state


@dataclass(frozen=True)
class Header:
    """What the records of one transaction share."""

    id: str
    time: str  # UTC, "2025-10-01T12:00:00Z"
    command: str
    cpfix: str  # version
    process: str  # "412 on node7"

    @property
    def title(self) -> str:
        """For messages."""
        return f"`{self.command}` of {self.time} (process {self.process})"


@dataclass(frozen=True)
class Step:
    """One file to be replaced, and what it may hold meanwhile."""

    target: Path  # may be a symlink
    temp: Path  # the new bytes, beside the real file
    old: str  # sha256, "" where there was no file
    new: str  # sha256, "" where there is to be none

    @property
    def real(self) -> Path:
        """The file behind symlinks, which is the one that is replaced."""
        return self.target.resolve()

    @property
    def like(self) -> Path | None:
        """The file whose mode and owner the next one takes over."""
        return self.real if self.real.exists() else None


@dataclass(frozen=True)
class Part:
    """The share of one import root in a transaction."""

    header: Header
    root: Path
    roots: tuple[Path, ...]  # of the whole transaction, the coordinator first
    files: tuple[Step, ...]
    journal: Step
    committed: bool = False

    @property
    def record(self) -> Path:
        """Where this share is written down."""
        return state.state_dir(self.root) / state.TRANSACTION

    @property
    def coordinates(self) -> bool:
        """True where this record decides."""
        return self.root == self.roots[0]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Files first, then the journal that tells of them."""
        return (*self.files, self.journal)


def write(part: Part) -> None:
    """Write a share's record, so that it outlasts a power cut."""
    disk.write(part.record, document.dump(_plain(part)))
    disk.sync_dir(part.record.parent)


def read(root: Path) -> Part | None:
    """The unended transaction that an import root takes part in.

    Raises CannotApply where the record is damaged, EnvironmentRefuses where it may not be read.
    """
    root = root.resolve()
    path = state.state_dir(root) / state.TRANSACTION
    remedy = f"Reinstall the packages below {root}, then delete {path.parent}."
    return document.load(path, lambda data: _parse(root, data), remedy)


def parts(part: Part) -> tuple[Part, ...]:
    """All shares of a transaction that still have their record, in the order of its roots."""
    found = (read(root) for root in part.roots)
    return tuple(other for other in found if other is not None and other.header.id == part.header.id)


def unended(roots: Iterable[Path]) -> tuple[tuple[Part, ...], ...]:
    """Each transaction that one of the roots takes part in, as its shares, one at least. Reads only."""
    first: dict[str, Part] = {}
    for root in roots:
        part = read(root)
        if part is not None:
            first.setdefault(part.header.id, part)
    # without a lock, a live one may have ended since its first record was read: then no share is left
    return tuple(shares for part in first.values() if (shares := parts(part)))


def involved(roots: Iterable[Path]) -> tuple[Path, ...]:
    """The roots and those that they share an unended transaction with: all need locking. Resolved, sorted."""
    roots = {root.resolve() for root in roots}
    others = (other for shares in unended(roots) for other in shares[0].roots if other.is_dir())
    return tuple(sorted(roots.union(others)))


def is_committed(shares: Iterable[Part]) -> bool:
    """True where the coordinator says so, and so says the disk."""
    return any(share.coordinates and share.committed for share in shares)


def _plain(part: Part) -> dict[str, object]:
    return {
        **asdict(part.header),
        "roots": [os.path.relpath(root, part.root) for root in part.roots],
        "committed": part.committed,
        "files": [{"path": os.path.relpath(step.target, part.root), **_hashes(step)} for step in part.files],
        "journal": _hashes(part.journal),
    }


def _hashes(step: Step) -> dict[str, object]:
    return {"temp": step.temp.name, "old": step.old, "new": step.new}


def _parse(root: Path, data: dict[str, object]) -> Part:
    names = ("id", "time", "command", "cpfix", "process")
    roots = tuple((root / name).resolve() for name in document.texts(data["roots"]))
    if root not in roots:
        raise ValueError(f"{root} is not among its roots")
    return Part(
        header=Header(**{name: document.text(data[name]) for name in names}),
        root=root,
        roots=roots,
        files=tuple(
            _step(root / document.below(item["path"]), item) for item in document.tables(data["files"])
        ),
        journal=_step(state.state_dir(root) / state.JOURNAL, document.table(data["journal"])),
        committed=data["committed"] is True,
    )


def _step(target: Path, data: dict[str, object]) -> Step:
    temp = document.below(data["temp"])
    return Step(
        target=target,
        temp=target.resolve().parent / temp,
        old=document.digest_or_none(data["old"]),
        new=document.digest_or_none(data["new"]),
    )
