"""One lock per state directory: N processes that start at once work one after the other.

It is `flock` on `<state>/lock`, which the kernel drops when its holder dies, however it dies. It is taken
by hand because the file has to go when the work is done: who waits must find out that the file it has just
locked is not the one on the disk any more. (filelock before 4 doesn't, and empties the file that says who
holds it.)

Local file systems lock between all processes of a host, in containers that share the folder too. NFS, and
Lustre mounted with `flock`, lock between hosts as well; mounted with `local_lock` or `localflock` they lock
on each host by itself, so run cpfix on one node there. A file system that cannot lock at all is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from migrator.ledger import disk, state, transaction
from migrator.ledger.refusal import explain
from migrator.model import EnvironmentRefuses

_CONTENDED = (errno.EWOULDBLOCK, errno.EACCES)  # some network file systems say EACCES
_CANNOT = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_PAUSE = 0.02  # seconds between two attempts


@contextmanager
def locked(roots: Iterable[Path], timeout: float = 600.0) -> Iterator[None]:
    """Hold the locks of these import roots, and of those that a killed transaction ties to them.

    They are taken in sorted order, so that no two processes wait for each other. Waits up to `timeout`
    seconds, then raises EnvironmentRefuses naming the holder; also where the state directory can't be
    written. What the files hold may have changed meanwhile: plan again under the lock.
    """
    deadline = time.monotonic() + timeout
    roots = tuple(roots)
    while True:
        wanted = transaction.involved(roots)
        with ExitStack() as held:
            for root in wanted:
                held.enter_context(_held(root, deadline))
            if set(transaction.involved(roots)) <= set(wanted):
                yield
                return


def at_work(roots: Iterable[Path]) -> list[str]:
    """A sentence for each root whose lock a process holds, be it this one. Writes nothing, never waits."""
    paths = (state.state_dir(root) / state.LOCK for root in roots)
    return [f"{path} is held by {_holder(path)}." for path in dict.fromkeys(paths) if _is_held(path)]


@contextmanager
def _held(root: Path, deadline: float) -> Iterator[None]:
    folder = state.state_dir(root)
    if not root.is_dir():
        raise EnvironmentRefuses(f"{root} is no folder: there is nothing to lock.")
    try:
        handle = _wait(folder, deadline)
    except OSError as error:
        raise EnvironmentRefuses(_refused(folder, error)) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the next one clears up
            _clear(folder)
        os.close(handle)


def _wait(folder: Path, deadline: float) -> int:
    while True:
        handle = _open(folder)
        if handle is not None:
            try:
                if _lock(handle, folder / state.LOCK):
                    state.prepare(folder)
                    _sign(handle)
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        if time.monotonic() >= deadline:
            raise EnvironmentRefuses(_busy(folder / state.LOCK))
        time.sleep(_PAUSE)


def _clear(folder: Path) -> None:
    # Once the lock file is gone, the next holder may be there with its own: after it, nothing may be removed
    # but an empty folder.
    if not state.vacate(folder, {state.IGNORE, state.LOCK}):
        disk.discard(folder / state.LOCK)


def _open(folder: Path) -> int | None:
    """The lock file's handle; None where the last holder has removed the folder at this moment."""
    if not folder.is_dir():
        disk.make_dir(folder)
    try:
        return os.open(folder / state.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        return None


def _lock(handle: int, path: Path) -> bool:
    """Lock without waiting; False where somebody else has it, or had it and has removed the file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _CONTENDED:
            return False
        raise
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        return error.errno in _CONTENDED
    return False  # left by a process that was killed


def _sign(handle: int) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename} since {since}\n".encode(), 0)


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text("utf-8", "replace").strip() or "a process that has not signed it yet"
    return "a process that is just done"


def _busy(path: Path) -> str:
    return (
        f"Another cpfix is at work: {path} is held by {_holder(path)}. Wait until it is done, or end it, and "
        "run cpfix again; a process that is gone holds no lock."
    )


def _refused(folder: Path, error: OSError) -> str:
    if error.errno in _CANNOT:
        return (
            f"The file system of {folder} cannot lock ({error.strerror}). Set CPFIX_STATE_DIR to a folder on "
            "a local disk, and keep it: the originals are stored there."
        )
    return f"{explain(error)} If only {folder} can't be written, set CPFIX_STATE_DIR to a folder that can."
