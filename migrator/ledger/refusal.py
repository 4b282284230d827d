"""What to tell a user whose system won't let a file be written."""

from __future__ import annotations

import errno

_REMEDY = {
    errno.ENOSPC: "Make room there and run cpfix again.",
    errno.EDQUOT: "Make room in your quota and run cpfix again.",
    errno.EROFS: "Run cpfix where it is writable: while the image is built, or on a copy.",
    errno.EACCES: "Run cpfix as the owner of the files.",
    errno.EPERM: "Run cpfix as the owner of the files; look for an immutable flag (lsattr).",
    errno.EBUSY: "If it is a mount point, run cpfix on what is mounted there.",
}


def explain(error: OSError) -> str:
    """Which file, why, and what to do; two sentences."""
    where = error.filename2 or error.filename or "a file"
    remedy = _REMEDY.get(error.errno or 0, "Run cpfix again when that is mended.")
    return f"Cannot read or write {where}: {error.strerror or error}. {remedy}"
