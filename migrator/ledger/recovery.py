"""The two ways out of a transaction that has not ended: undo it, or clear up behind it.

Both may themselves be killed anywhere and be started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from migrator.ledger import disk, journal, state, transaction
from migrator.ledger.bytecode import compiled
from migrator.ledger.refusal import explain
from migrator.ledger.transaction import Part, Step
from migrator.model import CannotApply, EnvironmentRefuses


def pending(roots: Iterable[Path]) -> list[str]:
    """A sentence for each transaction below these roots that has not ended. Reads only.

    It is at work in another process, or it was killed; `recover` is for the second case.
    """
    return [_state_of(shares) for shares in transaction.unended(roots)]


def recover(roots: Iterable[Path]) -> list[str]:
    """Finish or undo what a killed command left below these roots, and say so, one sentence each.

    To be called with the roots locked. May be called at any time: there is mostly nothing to do. Raises
    CannotApply, and touches nothing, where somebody has changed one of the files since; EnvironmentRefuses
    where the system won't let a file be written, and then it can be called again.
    """
    try:
        return _recover(tuple(roots))
    except OSError as error:
        raise EnvironmentRefuses(f"A killed command's work cannot be ended. {explain(error)}") from error


def _recover(roots: Sequence[Path]) -> list[str]:
    said = []
    for shares in transaction.unended(roots):
        title = shares[0].header.title
        if transaction.is_committed(shares):
            finish(shares)
            said.append(f"{title} was killed when all was written: its files have the new state.")
        else:
            back = ", ".join(map(str, undo(shares))) or "none had been changed"
            said.append(f"{title} was killed before it was done: its files have the old state ({back}).")
    for root in roots:
        _sweep(root)
    return said


def undo(shares: Sequence[Part]) -> list[Path]:
    """Bring back every file's old bytes; the files that had to be written are returned.

    Raises CannotApply, and touches nothing, where a replaced file was changed since or a backup is lost;
    OSError where a file can't be written.
    """
    backups = [
        (step, state.kept(state.state_dir(share.root), step.old) if step.old else None)
        for share in shares
        for step in share.steps
        if _holds_new(step, shares)
    ]
    for step, backup in backups:
        _restore(step, backup)
    staged = [step for share in shares for step in share.steps if step.temp.exists()]
    for step in staged:
        disk.unlink(step.temp)
    sync([*staged, *(step for step, _ in backups)])
    finish(shares)
    journals = {share.journal for share in shares}
    return [step.target for step, _ in backups if step not in journals]


def finish(shares: Sequence[Part]) -> None:
    """Remove the records of a transaction that has come to its end, one way or the other."""
    participants = [share for share in shares if not share.coordinates]
    for share in participants:
        _remove_record(share)
    for share in shares:
        _sweep(share.root)
    for share in shares:
        if share.coordinates:
            _remove_record(share)
            _sweep(share.root)


def drop_compiled(step: Step) -> None:
    """Remove the `.pyc` files that may stand in for a changed source."""
    files = compiled(step.target)
    for file in files:
        disk.unlink(file)
    for folder in {file.parent for file in files}:
        disk.sync_dir(folder)


def sync(steps: Iterable[Step]) -> None:
    """Make what was renamed or removed in the folders of some steps outlast a power cut."""
    for folder in sorted({step.temp.parent for step in steps}):
        disk.sync_dir(folder)


def _holds_new(step: Step, shares: Sequence[Part]) -> bool:
    now = disk.digest_of(step.target)
    if now not in (step.old, step.new) and not step.temp.exists():  # while its temp waits, it isn't replaced
        records = " and ".join(str(share.record) for share in shares)
        raise CannotApply(
            f"{step.target} was changed by somebody else while {shares[0].header.title} had not ended, so "
            f"nothing is put back. Restore that file; or, to keep all files as they are, delete {records}. "
            "Then run cpfix again."
        )
    return now == step.new


def _restore(step: Step, backup: bytes | None) -> None:
    if backup is None:
        disk.unlink(step.real)
        return
    disk.discard(step.temp)
    disk.create(step.temp, backup, step.like)
    # Before as well: killed behind the rename, the next undo finds the old bytes and looks no further.
    drop_compiled(step)
    disk.replace(step.temp, step.real)
    drop_compiled(step)


def _remove_record(share: Part) -> None:
    if share.record.exists():
        disk.unlink(share.record)
        disk.sync_dir(share.record.parent)


def _sweep(root: Path) -> None:
    state.sweep(state.state_dir(root), journal.referenced(journal.read(root)))


def _state_of(shares: Sequence[Part]) -> str:
    places = ", ".join(f"{len(share.files)} files below {share.root}" for share in shares)
    title = f"{shares[0].header.title} ({places})"
    if transaction.is_committed(shares):
        return f"{title} has written all its files and is clearing up, or was killed doing so."
    return (
        f"{title} has not ended: it is still at work, or it was killed. "
        "The next `cpfix apply` or `cpfix revert` puts the old state back first."
    )
