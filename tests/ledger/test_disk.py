"""The effects themselves, and that there are no others."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path
from typing import Any

import pytest

import migrator.ledger
from migrator.ledger import disk

WRITING = {
    *("mkdir", "makedirs", "rmdir", "removedirs", "unlink", "remove", "rename", "renames", "link", "symlink"),
    *(
        "symlink_to",
        "hardlink_to",
        "write_bytes",
        "write_text",
        "touch",
        "truncate",
        "chmod",
        "chown",
        "utime",
    ),
    *("rmtree", "copy", "copyfile", "copytree", "mkstemp", "open", "fsync"),
}
LOCK = {"open"}  # its own file, which is no part of any transaction


def test_nothing_else_writes() -> None:
    """Fault injection sees what goes through `disk`, so nothing may go past it."""
    folder = Path(migrator.ledger.__file__).parent
    found = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                on = node.func.value if isinstance(node.func, ast.Attribute) else None
                ours = isinstance(on, ast.Name) and on.id == "disk"
                if name in WRITING and not ours and file.name != "disk.py":
                    found.add((file.name, name))
    assert found == {("lock.py", name) for name in LOCK}


def test_create_writes_bytes_and_syncs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    disk.create(tmp_path / "file", b"\r\n\x00\xff")
    assert (tmp_path / "file").read_bytes() == b"\r\n\x00\xff"
    assert synced == [4], "synced when all was written"


def test_create_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "file", b"")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_create_takes_the_mode(tmp_path: Path) -> None:
    like = tmp_path / "like"
    like.touch(0o600)
    like.chmod(0o751)
    disk.create(tmp_path / "file", b"", like)
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o751


def test_create_takes_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    like = tmp_path / "like"
    like.touch()
    mine = like.stat()
    theirs = os.stat_result((*mine[:4], mine.st_uid + 1, mine.st_gid + 2, *mine[6:]))
    asked: list[tuple[int, int]] = []

    def refuse(handle: int, uid: int, gid: int) -> None:
        asked.append((uid, gid))
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    disk.create(tmp_path / "mine", b"", like)
    assert asked == []
    monkeypatch.setattr(Path, "stat", lambda path: theirs)
    disk.create(tmp_path / "theirs", b"", like)
    assert asked == [(-1, mine.st_gid + 2), (mine.st_uid + 1, -1)], "asked for, done where it may be done"


def test_create_takes_extended_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    like = tmp_path / "like"
    like.touch()
    given: dict[str, bytes] = {}

    def give(handle: int, name: str, value: bytes) -> None:
        if name == "security.capability":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        given[name] = value

    monkeypatch.setattr(os, "listxattr", lambda path: ["security.capability", "user.note"], raising=False)
    monkeypatch.setattr(os, "getxattr", lambda path, name: name.encode(), raising=False)
    monkeypatch.setattr(os, "setxattr", give, raising=False)
    disk.create(tmp_path / "file", b"", like)
    assert given == {"user.note": b"user.note"}


@pytest.mark.parametrize(("code", "matters"), [(errno.ENOTSUP, False), (errno.EIO, True)])
def test_create_without_extended_attributes(
    tmp_path: Path, code: int, matters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[str]:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "listxattr", refuse, raising=False)
    (tmp_path / "like").touch()
    if matters:
        with pytest.raises(OSError, match=os.strerror(code)):
            disk.create(tmp_path / "file", b"", tmp_path / "like")
    else:
        disk.create(tmp_path / "file", b"x", tmp_path / "like")
        assert (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize(("code", "matters"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_folder_that_cannot_be_synced(
    tmp_path: Path, code: int, matters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    if matters:
        with pytest.raises(OSError, match=os.strerror(code)):
            disk.sync_dir(tmp_path)
    else:
        disk.sync_dir(tmp_path)


def test_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    (tmp_path / "file.new").write_bytes(b"of a command that was killed")

    def refuse(*args: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "replace", refuse)
        with pytest.raises(OSError, match="Input/output"):
            disk.write(file, b"new")
    assert file.read_bytes() == b"old"
    disk.write(file, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_discard_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(disk, "unlink", refuse)
    disk.discard(tmp_path / "nothing")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(OSError, match="Read-only"):
        disk.discard(tmp_path / "dangling")


def test_digest_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert disk.digest_of(tmp_path / "file") == disk.digest(b"abc")
    assert disk.digest(b"abc").startswith("ba7816bf")
    assert disk.digest_of(tmp_path / "nothing") == ""
    assert disk.digest_of(tmp_path / "file" / "below") == ""
