"""The ledger: a lock, a journal, and writing many files at once or not at all.

It knows bytes, hashes and names, and nothing of what a patch means. A command that writes does

    with ledger.locked(roots, timeout):
        sentences = ledger.recover(roots)        a killed command's transaction, finished or undone
        ...                                      plan, on what the files hold now
        remarks = ledger.commit(changes, "cpfix apply", version)

A command that reads calls `pending`, `at_work`, `records`, `original` and `history`; none of them waits or
writes. One that wants to know, without the lock, that all is done has to ask `pending` and `at_work`
*after* it has read the files: both empty, no transaction was on its way between.

    disk.py         each effect on the disk, for tests to break
    state.py        the state directory and the originals in it
    document.py     reading and writing JSON
    journal.py      journal.json, what is applied
    transaction.py  transaction.json, what is being written
    draft.py        a transaction worked out in memory
    writing.py      commit
    recovery.py     undo, finish, recover
    lock.py         the lock
    bytecode.py     stale .pyc files
    refusal.py      what to tell a user when the system refuses
"""

from __future__ import annotations

from migrator.ledger.journal import Entry, history, original, records
from migrator.ledger.lock import at_work, locked
from migrator.ledger.recovery import pending, recover
from migrator.ledger.state import state_dir
from migrator.ledger.writing import commit

__all__ = [
    "Entry",
    "at_work",
    "commit",
    "history",
    "locked",
    "original",
    "pending",
    "records",
    "recover",
    "state_dir",
]
