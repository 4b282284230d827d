"""What is left of a killed command, and what the next one makes of it."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from migrator import ledger
from migrator.ledger import disk
from migrator.model import CannotApply, EnvironmentRefuses
from tests.ledger import faults, world


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return world.build(tmp_path / "image")


@pytest.fixture
def half(base: Path) -> Path:
    """a.py is new, b.py and c.py are old."""
    faults.wreck(base, "all", faults.before_replacing("b.py"))
    return base


@pytest.fixture
def done(base: Path) -> Path:
    """All is new and committed, the first record is about to be removed."""
    faults.wreck(base, "all", lambda name, args: name == "unlink" and args[0].name == "transaction.json")
    return base


def content(base: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in base.rglob("*") if file.is_file()}


def test_says_what_it_put_back(half: Path) -> None:
    (said,) = world.repair(half)
    assert said.startswith("`cpfix all` of 20")
    assert f"its files have the old state ({half / 'left' / 'nemo/a.py'})" in said


def test_says_that_it_was_done(done: Path) -> None:
    (said,) = world.repair(done)
    assert "its files have the new state" in said
    assert world.is_in(done, "all")


def test_reading_only_reports(half: Path) -> None:
    before = content(half)
    with faults.broken(faults.die, 0):
        (said,) = ledger.pending(world.roots(half))
        assert "2 files below" in said
        assert "has not ended" in said
        ledger.records(half / "left")
    assert content(half) == before


def test_reading_reports_what_is_only_untidy(done: Path) -> None:
    (said,) = ledger.pending(world.roots(done))
    assert "has written all its files" in said


def test_nothing_to_recover(base: Path) -> None:
    with faults.broken(faults.die, 0):
        assert ledger.recover(world.roots(base)) == []
        assert ledger.pending(world.roots(base)) == []


@pytest.mark.parametrize("root", ["left", "right"])
def test_any_of_the_roots_recovers_all(half: Path, root: str) -> None:
    with ledger.locked([half / root]):
        assert len(ledger.recover([half / root])) == 1
    assert ledger.pending(world.roots(half)) == []
    assert world.is_in(half, "pristine")


@pytest.mark.parametrize("root", ["left", "right"])
def test_any_of_the_roots_finishes_all(done: Path, root: str) -> None:
    with ledger.locked([done / root]):
        assert len(ledger.recover([done / root])) == 1
    assert world.is_in(done, "all")


def test_file_changed_since_is_not_overwritten(half: Path) -> None:
    target = half / "left" / "nemo/a.py"
    mine = target.read_bytes() + b"mine\n"
    target.write_bytes(mine)
    before = content(half)
    with pytest.raises(CannotApply, match=r"nemo/a\.py was changed by somebody else") as caught:
        world.repair(half)
    assert str(half / "left" / ".cpfix" / "transaction.json") in str(caught.value)
    assert str(half / "right" / ".cpfix" / "transaction.json") in str(caught.value)
    assert content(half) == before
    target.write_bytes(world.content(world.A, 2))
    world.repair(half)
    assert world.is_in(half, "pristine")


def test_no_file_is_put_back_when_one_was_changed(base: Path) -> None:
    faults.wreck(base, "all", faults.before_replacing("journal.json"))
    (base / "right" / "megatron/c.py").write_bytes(b"mine")
    before = content(base)
    with pytest.raises(CannotApply, match=r"megatron/c\.py"):
        world.repair(base)
    assert content(base) == before


def test_deleted_file_counts_as_changed(half: Path) -> None:
    (half / "left" / "nemo/a.py").unlink()
    with pytest.raises(CannotApply, match=r"nemo/a\.py"):
        world.repair(half)


def test_file_not_replaced_yet_may_change(half: Path) -> None:
    target = half / "right" / "megatron/c.py"
    target.write_bytes(b"mine")
    world.repair(half)
    assert target.read_bytes() == b"mine"
    target.write_bytes(world.ORIGINALS[world.C])
    assert world.is_in(half, "pristine")


def test_reinstalled_meanwhile_is_fine(half: Path) -> None:
    (half / "left" / "nemo/a.py").write_bytes(world.ORIGINALS[world.A])
    (said,) = world.repair(half)
    assert "none had been changed" in said
    assert world.is_in(half, "pristine")


def test_lost_backup_stops_it_before_it_begins(half: Path) -> None:
    (half / "left" / ".cpfix" / "originals" / disk.digest(world.ORIGINALS[world.A])).write_bytes(b"rot")
    before = content(half)
    with pytest.raises(CannotApply, match="lost"):
        world.repair(half)
    assert content(half) == before


def test_compiled_from_the_state_that_is_undone(half: Path) -> None:
    cache = half / "left" / "nemo" / "__pycache__" / "a.cpython-312.opt-1.pyc"
    cache.write_bytes(b"compiled from the new source")
    world.repair(half)
    assert not cache.exists()
    assert world.compiled(half) == {world.B, world.C}


def test_compiled_while_it_is_undone(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process imports the new source just before the old one comes back."""
    cache, put = half / "left" / "nemo" / "__pycache__" / "a.cpython-312.pyc", disk.replace

    def imported(source: Path, target: Path) -> None:
        if target.name == "a.py":
            cache.write_bytes(b"compiled from the new source")
        put(source, target)

    monkeypatch.setattr(disk, "replace", imported)
    world.repair(half)
    assert not cache.exists()


def test_compiled_file_does_not_outlive_a_killed_repair(half: Path, tmp_path: Path) -> None:
    (half / "left" / "nemo" / "__pycache__" / "a.cpython-312.pyc").write_bytes(
        b"compiled from the new source"
    )
    with faults.Killer() as killed:
        for k in count():
            base = shutil.copytree(half, tmp_path / str(k))
            if not killed(base, "", k):
                break
            world.repair(base)
            assert world.is_in(base, "pristine")
            assert world.compiled(base) == {world.B, world.C}
    assert k > 10


def test_old_state_is_on_the_disk_before_the_record_goes(half: Path) -> None:
    done: list[tuple[str, Path]] = []

    def note(name: str, args: tuple[Any, ...]) -> None:
        done.append((name, args[1] if name == "replace" else args[0]))

    with faults.broken(note, 0, forever=True):
        world.repair(half)
    folder = half / "left" / "nemo"
    put_back = done.index(("replace", folder / "a.py"))
    synced = done.index(("sync_dir", folder), put_back)
    cleared = done.index(("unlink", half / "right" / ".cpfix" / "transaction.json"))
    decided = done.index(("unlink", half / "left" / ".cpfix" / "transaction.json"))
    assert put_back < synced < cleared < decided, "the coordinator's record goes last"


def test_moved_image(half: Path) -> None:
    moved = half.rename(half.with_name("moved"))
    world.repair(moved)
    assert world.is_in(moved, "pristine")


def test_root_that_is_gone(half: Path) -> None:
    shutil.rmtree(half / "right")
    with ledger.locked([half / "left"]):
        assert len(ledger.recover([half / "left"])) == 1
    assert (half / "left" / "nemo/a.py").read_bytes() == world.ORIGINALS[world.A]
    assert not (half / "left" / ".cpfix").exists()


def test_record_of_an_older_transaction_is_no_part(done: Path) -> None:
    """Killed when only the coordinator was left; meanwhile the other root has moved on."""
    (done / "right" / ".cpfix" / "transaction.json").unlink()
    with ledger.locked([done / "right"]):
        ledger.commit([world.change(done, world.C, 2, 0)], "cpfix revert", "1.0.0")
    world.repair(done)
    assert world.versions(done) == {world.A: 2, world.B: 2}
    assert (done / "right" / "megatron/c.py").read_bytes() == world.ORIGINALS[world.C]


def test_system_that_refuses(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(30, "Read-only file system", str(source), None, str(target))

    monkeypatch.setattr(disk, "replace", refuse)
    with pytest.raises(EnvironmentRefuses, match=r"nemo/a\.py: Read-only file system"):
        ledger.recover(world.roots(half))
    monkeypatch.undo()
    world.repair(half)
    assert world.is_in(half, "pristine")
