"""The unified diff of a set of changes, as `git apply` takes it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from migrator.model import FileChange

_NO_EOL = b"\\ No newline at end of file\n"


def unified(changes: Iterable[FileChange], top: Path) -> bytes:
    """One diff for the files of one tree, with paths below `top`."""
    return b"".join(row for change in changes for row in _file(change, top))


def _file(change: FileChange, top: Path) -> Iterator[bytes]:
    path = change.target.relative_to(top).as_posix()
    name = path.encode()
    old, new = (_lines(raw) for raw in (change.old, change.new))
    for row in difflib.diff_bytes(difflib.unified_diff, old, new, b"a/" + name, b"b/" + name):
        yield row if row.endswith(b"\n") else row + b"\n" + _NO_EOL


def _lines(raw: bytes) -> Sequence[bytes]:
    """Lines as git counts them: only a line feed ends one."""
    return [line for line in raw.replace(b"\n", b"\n\0").split(b"\0") if line] if b"\0" not in raw else [raw]


def tree_of(root: Path) -> Path:
    """The top of the repository that `root` lies in, or `root`: below its top, `git apply` silently skips
    paths that are relative to a folder in it."""
    return next((p for p in (root, *root.parents) if (p / ".git").exists()), root)
