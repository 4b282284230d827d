"""Every effect that the ledger has on the disk, one tiny function each, and nothing else.

The other modules call these through the module (`disk.replace(...)`), so that a test can make the k-th effect
of a command fail, or kill the process there, by wrapping the functions that `EFFECTS` names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

EFFECTS = ("make_dir", "create", "replace", "sync_dir", "unlink", "remove_dir")

_NO_DIR_SYNC = (errno.EINVAL, errno.ENOTSUP)  # some network and FUSE file systems
_NO_XATTR = (errno.ENOTSUP, errno.ENODATA, errno.EINVAL, errno.EPERM, errno.EACCES)


def make_dir(path: Path) -> None:
    """Make a folder and its parents; one that is there is fine."""
    path.mkdir(parents=True, exist_ok=True)


def create(path: Path, data: bytes, like: Path | None = None) -> None:
    """Write a new file and fsync it; it takes mode, owner and extended attributes from `like`.

    Raises FileExistsError where `path` exists, and OSError as the system gives it.
    """
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        if like is not None:
            _copy_metadata(like, file.fileno())
        os.fsync(file.fileno())


def replace(source: Path, target: Path) -> None:
    """Rename over `target`, at once or not at all."""
    source.replace(target)


def sync_dir(path: Path) -> None:
    """Make the renames and removals in a folder outlast a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_DIR_SYNC:
            raise
    finally:
        os.close(handle)


def unlink(path: Path) -> None:
    """Remove a file; one that is gone is fine."""
    path.unlink(missing_ok=True)


def remove_dir(path: Path) -> None:
    """Remove an empty folder."""
    path.rmdir()


def write(path: Path, data: bytes) -> None:
    """Write one of the ledger's own files, whole or not at all, by way of `<name>.new`.

    It outlasts a power cut once its folder is synced.
    """
    temp = path.with_name(path.name + ".new")
    discard(temp)  # of a command that was killed
    create(temp, data)
    replace(temp, path)


def discard(path: Path) -> None:
    """Remove a file if it is there. Asks first: on a read-only file system even a vain unlink is an error."""
    if os.path.lexists(path):
        unlink(path)


def digest(data: bytes) -> str:
    """sha256, in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_of(path: Path) -> str:
    """sha256 of a file's bytes, "" where there is no file."""
    try:
        return digest(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _copy_metadata(source: Path, handle: int) -> None:
    wanted, have = source.stat(), os.fstat(handle)
    with suppress(PermissionError):  # a group that one is not in
        if have.st_gid != wanted.st_gid:
            os.fchown(handle, -1, wanted.st_gid)
    with suppress(PermissionError):  # only root may give a file away
        if have.st_uid != wanted.st_uid:
            os.fchown(handle, wanted.st_uid, -1)
    os.fchmod(handle, stat.S_IMODE(wanted.st_mode))  # after chown, which clears set-id bits
    if hasattr(os, "listxattr"):
        _copy_xattrs(source, handle)


def _copy_xattrs(source: Path, handle: int) -> None:
    try:
        for name in os.listxattr(source):
            with suppress(PermissionError):
                os.setxattr(handle, name, os.getxattr(source, name))
    except OSError as error:
        if error.errno not in _NO_XATTR:
            raise
