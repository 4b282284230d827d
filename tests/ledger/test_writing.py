"""`commit`: all or nothing, and what it keeps of each file."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from migrator import ledger
from migrator.ledger import disk
from migrator.model import CannotApply, EnvironmentRefuses
from tests.ledger import faults, world


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return world.build(tmp_path)


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


def test_there_and_back(base: Path) -> None:
    before = names(base)
    world.move(base, "all")
    assert world.is_in(base, "all")
    assert world.compiled(base) == set()
    world.move(base, "one")
    assert world.is_in(base, "one")
    world.move(base, "pristine")
    assert world.is_in(base, "pristine")
    assert names(base) == {name for name in before if not name.endswith(".pyc")}


def test_without_a_lock(base: Path) -> None:
    for goal in ("all", "pristine"):
        ledger.commit(world.changes(base, goal), "cpfix", "1.0.0")
        assert world.is_in(base, goal)


def test_nothing_to_do_touches_nothing(base: Path) -> None:
    world.move(base, "all")
    again = [world.change(base, key, 2, 2) for key in world.ORIGINALS]
    with faults.broken(faults.die, 10**9) as effects:
        assert ledger.commit([], "cpfix", "1.0.0") == []
        assert ledger.commit(again, "cpfix", "1.0.0") == []
    assert effects == []
    assert len(ledger.history(base / "left")) == 1


def test_same_bytes_under_a_new_patch_change_the_journal_only(base: Path) -> None:
    world.move(base, "all")
    target = base / "left" / "nemo/a.py"
    inode = target.stat().st_ino
    change = world.change(base, world.A, 2, 2)
    patches = (replace(change.patches[0], fingerprint="3"),)
    ledger.commit([replace(change, patches=patches)], "cpfix", "1.0.0")
    assert target.stat().st_ino == inode
    assert world.versions(base) == {world.A: 3, world.B: 2, world.C: 2}


def test_record_of_a_reinstalled_file_can_be_dropped(base: Path) -> None:
    world.move(base, "one")
    (base / "left" / "nemo/a.py").write_bytes(world.ORIGINALS[world.A])
    ledger.commit([world.change(base, world.A, 0, 0)], "cpfix revert", "1.0.0")
    assert world.is_in(base, "pristine")


def test_reinstalled_file_gets_a_new_original(base: Path) -> None:
    world.move(base, "one")
    target = base / "left" / "nemo/a.py"
    target.write_bytes(b"newer upstream\n")
    change = replace(world.change(base, world.A, 0, 1), old=b"newer upstream\n", original=b"newer upstream\n")
    ledger.commit([change], "cpfix apply", "1.0.0")
    record = ledger.records(base / "left")["nemo/a.py"]
    assert ledger.original(base / "left", record) == b"newer upstream\n"
    assert len(list((base / "left" / ".cpfix" / "originals").iterdir())) == 1


def test_file_changed_meanwhile(base: Path) -> None:
    plan = world.changes(base, "all")
    (base / "right" / "megatron/c.py").write_bytes(b"mine")
    with (
        faults.broken(faults.die, 10**9) as effects,
        pytest.raises(CannotApply, match=r"megatron/c\.py was changed by somebody else"),
    ):
        ledger.commit(plan, "cpfix", "1.0.0")
    assert effects == []
    assert (base / "left" / "nemo/a.py").read_bytes() == world.ORIGINALS[world.A]


def test_file_changed_at_the_last_moment(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = disk.create
    target = base / "right" / "megatron/c.py"

    def late(path: Path, data: bytes, like: Path | None = None) -> None:
        create(path, data, like)
        target.write_bytes(b"mine")

    monkeypatch.setattr(disk, "create", late)
    before = names(base)
    with pytest.raises(CannotApply, match=r"megatron/c\.py was changed by somebody else just now"):
        ledger.commit(world.changes(base, "all"), "cpfix", "1.0.0")
    assert names(base) == before
    assert target.read_bytes() == b"mine"


def test_missing_file(base: Path) -> None:
    plan = world.changes(base, "all")
    (base / "left" / "nemo/b.py").unlink()
    with pytest.raises(CannotApply, match=r"nemo/b\.py is not there any more"):
        ledger.commit(plan, "cpfix", "1.0.0")


def test_no_regular_file(base: Path) -> None:
    plan = world.changes(base, "all")
    (base / "left" / "nemo/b.py").unlink()
    os.mkfifo(base / "left" / "nemo/b.py")
    with pytest.raises(CannotApply, match=r"nemo/b\.py is no regular file"):
        ledger.commit(plan, "cpfix", "1.0.0")


def test_path_that_leads_out_of_the_root(base: Path) -> None:
    change = replace(world.change(base, world.A, 0, 1), path="../right/megatron/c.py")
    with pytest.raises(ValueError, match="below the import root"):
        ledger.commit([change], "cpfix", "1.0.0")


def test_removal_has_to_bring_the_original(base: Path) -> None:
    world.move(base, "one")
    change = replace(world.change(base, world.A, 1, 0), new=b"else")
    with pytest.raises(ValueError, match="original"):
        ledger.commit([change], "cpfix", "1.0.0")


def test_symlinked_file_stays_a_link(base: Path) -> None:
    link, real = base / "left" / "nemo/a.py", base / "elsewhere" / "real.py"
    real.parent.mkdir()
    link.rename(real)
    link.symlink_to("../../elsewhere/real.py")
    cache = real.parent / "__pycache__" / "real.cpython-310.opt-2.pyc"
    cache.parent.mkdir()
    cache.write_bytes(b"compiled")
    ledger.commit([world.change(base, world.A, 0, 1)], "cpfix", "1.0.0")
    assert link.readlink() == Path("../../elsewhere/real.py")
    assert real.read_bytes() == world.content(world.A, 1)
    assert not cache.exists()
    assert names(real.parent) == {"real.py", "__pycache__"}
    ledger.commit([world.change(base, world.A, 1, 0)], "cpfix", "1.0.0")
    assert link.is_symlink()
    assert real.read_bytes() == world.ORIGINALS[world.A]


def test_symlinked_folder(base: Path) -> None:
    (base / "left" / "nemo").rename(base / "moved")
    (base / "left" / "nemo").symlink_to(base / "moved")
    ledger.commit([world.change(base, world.A, 0, 1)], "cpfix", "1.0.0")
    assert (base / "moved" / "a.py").read_bytes() == world.content(world.A, 1)


def test_one_file_by_two_names(base: Path) -> None:
    (base / "right" / "nemo").symlink_to(base / "left" / "nemo")
    first = world.change(base, world.A, 0, 1)
    second = replace(first, root=base / "right")
    with pytest.raises(CannotApply, match="one file"):
        ledger.commit([first, second], "cpfix", "1.0.0")
    assert world.versions(base) == {}


def test_hard_link_is_broken(base: Path) -> None:
    target, cache = base / "left" / "nemo/a.py", base / "uv-cache.py"
    os.link(target, cache)
    ledger.commit([world.change(base, world.A, 0, 1)], "cpfix", "1.0.0")
    assert cache.read_bytes() == world.ORIGINALS[world.A]
    assert target.read_bytes() == world.content(world.A, 1)


def test_two_hard_links_are_two_files(base: Path) -> None:
    twin = base / "right" / "nemo/a.py"
    twin.parent.mkdir()
    os.link(base / "left" / "nemo/a.py", twin)
    first = world.change(base, world.A, 0, 1)
    ledger.commit([first, replace(first, root=base / "right")], "cpfix", "1.0.0")
    assert twin.read_bytes() == world.content(world.A, 1)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o444])
def test_mode_is_kept(base: Path, mode: int) -> None:
    target = base / "left" / "nemo/a.py"
    target.chmod(mode)
    for old, new in ((0, 1), (1, 0)):
        ledger.commit([world.change(base, world.A, old, new)], "cpfix", "1.0.0")
        assert target.stat().st_mode & 0o7777 == mode


def test_mode_is_kept_when_taken_back(base: Path) -> None:
    target = base / "left" / "nemo/a.py"
    target.chmod(0o640)
    faults.wreck(base, "all", faults.before_replacing("b.py"))
    assert target.read_bytes() == world.content(world.A, 2)
    world.repair(base)
    assert target.stat().st_mode & 0o7777 == 0o640


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_folder_that_cannot_be_written(base: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    create, refused = disk.create, base / "right" / "megatron"

    def refuse(path: Path, data: bytes, like: Path | None = None) -> None:
        if path.parent == refused:
            raise OSError(code, os.strerror(code), str(path))
        create(path, data, like)

    monkeypatch.setattr(disk, "create", refuse)
    before = names(base)
    with pytest.raises(EnvironmentRefuses, match=f"{os.strerror(code)}.*Nothing was changed") as caught:
        ledger.commit(world.changes(base, "all"), "cpfix", "1.0.0")
    assert str(refused) in str(caught.value)
    assert names(base) == before, "not even a valid .pyc is gone"


def test_file_system_that_takes_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(args[0]))

    for name in disk.EFFECTS:
        monkeypatch.setattr(disk, name, refuse)
    with pytest.raises(EnvironmentRefuses, match=r"Read-only file system.*Nothing was changed"):
        ledger.commit(world.changes(base, "all"), "cpfix", "1.0.0")


def test_file_that_cannot_be_read(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.changes(base, "all")

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(EnvironmentRefuses, match="Permission denied"):
        ledger.commit(plan, "cpfix", "1.0.0")


def test_killed_transaction_has_to_be_recovered_first(base: Path) -> None:
    faults.wreck(base, "all", faults.before_replacing("b.py"))
    plan = [world.change(base, world.B, 0, 1)]
    with pytest.raises(CannotApply, match="has not ended"):
        ledger.commit(plan, "cpfix", "1.0.0")


def test_everything_is_on_the_disk_before_what_builds_on_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Path]] = []

    def note(name: str, args: tuple[Any, ...]) -> None:
        done.append((name, args[1] if name == "replace" else args[0]))

    with faults.broken(note, 0, forever=True):
        ledger.commit(world.changes(base, "all"), "cpfix", "1.0.0")
    left, right = base / "left" / ".cpfix", base / "right" / ".cpfix"
    sources = [done.index(("replace", file)) for file in world.sources(base)]
    staged = [
        i for i, (name, path) in enumerate(done) if name == "create" and path.name.startswith(".cpfix-")
    ]
    records = [
        i
        for i, step in enumerate(done)
        if step in {("replace", s / "transaction.json") for s in (left, right)}
    ]
    journals = [done.index(("replace", s / "journal.json")) for s in (left, right)]
    folders = [("sync_dir", base / "left" / "nemo"), ("sync_dir", base / "right" / "megatron")]

    assert len(staged) == 5
    assert len(records) == 3
    for state, record in ((right, records[0]), (left, records[1])):
        assert done[record] == ("replace", state / "transaction.json"), "the coordinator's comes last"
        assert ("sync_dir", state / "originals") in done[:record]
        assert done[record + 1] == ("sync_dir", state)
    assert records[1] < min(staged) < max(staged) < min(sources)
    assert max(sources) < min(journals) < max(journals) < records[2], "the mark comes last"
    for folder in folders:
        assert folder in done[max(sources) : min(journals)]
    assert {("sync_dir", left), ("sync_dir", right)} <= set(done[max(journals) : records[2]])
