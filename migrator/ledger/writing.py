"""`commit`: new bytes for many files below many import roots, all of them or none.

The order of effects, each on the disk before the next begins:

1. the state directories, and in them the backups and the originals that the journal will refer to;
2. the write-ahead records (transaction.py), the coordinator's last;
3. the new bytes of every file and every journal, each in a temporary file beside its target: whatever stands
   in the way (rights, room, a read-only file system) shows here, before any file is touched;
4. the renames and the removal of `.pyc` files, then the journals;
5. the rename that commits; then the records, and what is no longer referred to, are removed.

A failure before that rename undoes everything before it leaves; one after it costs no more than tidiness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from migrator.ledger import disk, recovery, state, transaction
from migrator.ledger.draft import Draft, draft
from migrator.ledger.refusal import explain
from migrator.ledger.transaction import Part, Step
from migrator.model import CannotApply, EnvironmentRefuses, FileChange


def commit(changes: Sequence[FileChange], command: str, cpfix_version: str) -> list[str]:
    """Write all changes, or none; to be called with their roots locked.

    Raises CannotApply where a file doesn't hold `old` any more, is no regular file or is named twice, or
    where a killed transaction waits for `recover`; EnvironmentRefuses where the system won't let a file be
    written. Then everything is as it was; if even going back fails, the message says so, and `recover` does
    it later. Returns remarks for the user, mostly none: all was written and is in force, but could not be
    tidied up.
    """
    try:
        work = draft(changes, command, cpfix_version)
    except OSError as error:
        raise EnvironmentRefuses(f"{explain(error)} Nothing was changed.") from error
    if not work:
        return []
    parts = [share.part for share in work]
    try:
        _begin(work)
        _stage(work)
        _swap(parts)
        transaction.write(replace(parts[0], committed=True))
    except BaseException as error:
        if not transaction.is_committed(transaction.parts(parts[0])):
            _take_back(parts, error)
            raise
        if not isinstance(error, OSError):
            raise
    try:
        recovery.finish(parts)
    except OSError as error:
        return [f"Everything is written, but not cleared up ({error}); the next cpfix that writes does it."]
    return []


def _begin(work: Sequence[Draft]) -> None:
    for share in work:
        folder = state.state_dir(share.part.root)
        state.prepare(folder)
        state.keep(folder, share.keep)
    for share in reversed(work):
        transaction.write(share.part)


def _stage(work: Sequence[Draft]) -> None:
    for share in work:
        for step in share.part.steps:
            if step.new:
                disk.create(step.temp, share.contents[step.temp], step.like)


def _swap(parts: Sequence[Part]) -> None:
    files = [step for part in parts for step in part.files]
    journals = [part.journal for part in parts]
    for step in (*files, *journals):
        if disk.digest_of(step.target) != step.old:
            raise CannotApply(f"{step.target} was changed by somebody else just now. Run cpfix again.")
    for step in files:
        _put(step)
        recovery.drop_compiled(step)
    recovery.sync(files)
    for step in journals:
        _put(step)
    recovery.sync(journals)


def _put(step: Step) -> None:
    if step.new:
        disk.replace(step.temp, step.real)
    else:
        disk.unlink(step.real)


def _take_back(parts: Sequence[Part], error: BaseException) -> None:
    """Undo; returns where `error` may leave as it is."""
    told = explain(error) if isinstance(error, OSError) else str(error)
    try:
        recovery.undo(parts)
    except Exception as second:
        if transaction.parts(parts[0]):
            raise EnvironmentRefuses(
                f"{told} Taking back what was written failed as well ({second}). What is left to do is kept "
                f"in {parts[0].record}: `cpfix apply` and `cpfix revert` put the old state back first."
            ) from error
    if isinstance(error, OSError):
        raise EnvironmentRefuses(f"{told} Nothing was changed.") from error
