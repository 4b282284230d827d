"""The state directory: where the ledger of one import root lies, and the originals that it keeps.

    <state>/.gitignore           "*": a checkout stays clean
    <state>/lock                 who is at work (lock.py); only while somebody is
    <state>/journal.json         what was written and why (journal.py); only while something is applied
    <state>/transaction.json     what is being written (transaction.py); only until that is done
    <state>/originals/<sha256>   bytes to go back to, each once

<state> is `.cpfix` in the import root, or a folder of its own below $CPFIX_STATE_DIR. It is there only
while it holds something.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from migrator.ledger import disk
from migrator.model import CannotApply

IGNORE = ".gitignore"
LOCK = "lock"
JOURNAL = "journal.json"
TRANSACTION = "transaction.json"
ORIGINALS = "originals"


def state_dir(root: Path) -> Path:
    """The state directory of an import root, whether it exists or not.

    Below $CPFIX_STATE_DIR each root has a folder, named by the end of its path and a hash of the whole. So a
    root that is moved leaves that journal behind, while one in `.cpfix` moves along.
    """
    root = root.resolve()
    base = os.environ.get("CPFIX_STATE_DIR", "")
    if not base:
        return root / ".cpfix"
    readable = re.sub(r"[^\w.]+", "-", str(root))[-48:].strip("-.")
    name = f"{readable or 'root'}-{disk.digest(os.fsencode(root))[:10]}"
    return Path(base).expanduser().absolute() / name


def prepare(state: Path) -> None:
    """Make a state directory that git does not see."""
    if not state.is_dir():
        disk.make_dir(state)
        disk.sync_dir(state.parent)
    if not (state / IGNORE).exists():
        disk.write(state / IGNORE, b"*\n")


def keep(state: Path, blobs: Iterable[bytes]) -> None:
    """Store bytes under their hashes; they are on the disk, not only on their way, when this returns."""
    folder = state / ORIGINALS
    if not folder.is_dir():
        disk.make_dir(folder)
        disk.sync_dir(state)
    for data in blobs:
        name = disk.digest(data)
        if disk.digest_of(folder / name) != name:
            disk.write(folder / name, data)
    disk.sync_dir(folder)


def kept(state: Path, digest: str) -> bytes:
    """Bytes that were stored under `digest`. Raises CannotApply where they are missing or damaged."""
    path = state / ORIGINALS / digest
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CannotApply(_lost(path, error.strerror or "unreadable")) from error
    if disk.digest(data) != digest:
        raise CannotApply(_lost(path, "its content does not fit its name"))
    return data


def sweep(state: Path, wanted: Collection[str]) -> None:
    """Drop what an ended or killed command left: unwanted originals, half-written files, empty folders.

    The directory itself goes when nothing but its `.gitignore` is in it.
    """
    if not state.is_dir():
        return
    for stray in sorted(state.glob("*.new")):
        disk.unlink(stray)
    originals = state / ORIGINALS
    if originals.is_dir():
        for file in sorted(originals.iterdir()):
            if file.name not in wanted:
                disk.unlink(file)
        if not any(originals.iterdir()):
            disk.remove_dir(originals)
    vacate(state, {IGNORE})


def vacate(state: Path, worthless: Collection[str]) -> bool:
    """Remove a state directory that holds nothing but `worthless` files; False where it holds more."""
    if not {entry.name for entry in state.iterdir()} <= set(worthless):
        return False
    for name in sorted(worthless):
        disk.discard(state / name)
    disk.remove_dir(state)
    return True


def _lost(path: Path, why: str) -> str:
    return (
        f"{path}: the original kept there is lost ({why}). Reinstall the package it belongs to, which brings "
        "the original back, and run cpfix again."
    )
