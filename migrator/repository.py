"""The git repository that a package is tracked in: found and read as files, asked only for `dirty`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from migrator.model import Git
from migrator.pythonpath import SITE_NAMES, is_file, is_folder

if TYPE_CHECKING:
    from subprocess import CompletedProcess

TIMEOUT = 20.0  # seconds for one git command


@dataclass(frozen=True)
class _Repository:
    top: Path  # the work tree
    folder: Path  # its own git folder
    common: Path  # the one shared by all worktrees


def read_git(root: Path, package: str, version_file: str) -> tuple[Git | None, tuple[str, ...]]:
    """The repository that tracks the package below `root`, and what a user should know of it.

    `package` and `version_file` are posix paths below `root`, a resolved path. A repository around it that
    does not track the package (it ignores a virtual environment inside, say) is None.
    """
    repository = _find(root)
    if repository is None:
        return None, ()
    if isinstance(repository, str):
        return None, (repository,)
    below = root.relative_to(repository.top)
    if not _tracks(repository, (below / version_file).as_posix()):
        return None, ()
    dirty, note = _dirty(repository.top, (below / package).as_posix())
    return Git(_head(repository), dirty), (note,) if note else ()


def _find(root: Path) -> _Repository | str | None:
    """The nearest repository at or above `root`; a note where its `.git` leads nowhere."""
    for top in (root, *root.parents):
        dot = top / ".git"
        if is_folder(dot):
            folder = dot
        elif is_file(dot):
            folder = top / _text(dot).removeprefix("gitdir:").strip()
            if not is_file(folder / "HEAD"):
                return f"{dot} points to {folder}, which is no git folder: the commit is not known"
        else:
            continue
        if is_file(folder / "HEAD"):
            shared = _text(folder / "commondir")
            return _Repository(top, folder, folder / shared if shared else folder)
    return None


def _tracks(repository: _Repository, path: str) -> bool:
    """Whether the index names `path`; git is asked only where the index is not a plain list."""
    try:
        index = (repository.folder / "index").read_bytes()
    except OSError:
        return False
    name = os.fsencode(path)
    if index[4:8] in (b"\0\0\0\2", b"\0\0\0\3"):
        start = index.find(name + b"\0")
        while start >= 0:
            # The name follows 16 bits whose lower twelve are its length.
            if int.from_bytes(index[start - 2 : start], "big") & 0xFFF == min(len(name), 0xFFF):
                return True
            start = index.find(name + b"\0", start + 1)
        if b"link\0\0" not in index and b"sdir\0\0" not in index:
            return False
    answer = _git(repository.top, "ls-files", "--error-unmatch", "--", path)
    if isinstance(answer, str):
        return not any(part in SITE_NAMES for part in path.split("/"))
    return answer.returncode == 0


def _head(repository: _Repository) -> str:
    """The full hash of HEAD, "" on an unborn branch."""
    if is_folder(repository.common / "reftable"):
        answer = _git(repository.top, "rev-parse", "--verify", "--quiet", "HEAD")
        return "" if isinstance(answer, str) else answer.stdout.strip()
    value = _text(repository.folder / "HEAD")
    for _ in range(5):  # git follows no longer chain of symbolic references either
        if not value.startswith("ref:"):
            return value
        name = value.removeprefix("ref:").strip()
        value = (
            _text(repository.folder / name) or _text(repository.common / name) or _packed(repository, name)
        )
    return ""


def _packed(repository: _Repository, name: str) -> str:
    for line in _text(repository.common / "packed-refs").splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name:
            return commit
    return ""


def _dirty(top: Path, package: str) -> tuple[bool | None, str]:
    answer = _git(top, "status", "--porcelain", "--untracked-files=no", "--", package)
    if isinstance(answer, str):
        return None, f"whether files in {top} are changed is not known: {answer}"
    return bool(answer.stdout.strip()), ""


def _git(top: Path, *arguments: str) -> CompletedProcess[str] | str:
    """Run git in a work tree; a reason where it gives no answer."""
    import subprocess  # slow to import, and most installs are in no repository

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    # A repository's own settings may name a program here; asking for a status is no reason to start it.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(top), *arguments]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=TIMEOUT,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"git took longer than {TIMEOUT:g} s"
    except OSError as error:
        return f"git cannot be run ({error.strerror})"
    if "dubious ownership" in answer.stderr or "unsafe repository" in answer.stderr:
        return f"it has another owner; allow it: git config --global --add safe.directory {top}"
    if answer.returncode not in (0, 1):
        return f"git says: {(answer.stderr.strip() or 'nothing').splitlines()[-1]}"
    return answer


def _text(file: Path) -> str:
    """A small file's text without the surrounding blanks, "" where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""
