"""One process at a time, and no trace of the lock afterwards."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from migrator import ledger
from migrator.ledger import disk, state, transaction
from migrator.model import EnvironmentRefuses
from tests.ledger import faults, world

REPOSITORY = Path(__file__).parents[2]

RACE = """
import sys, time
from pathlib import Path
from migrator import ledger
from tests.ledger import world
base = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with ledger.locked(world.roots(base), timeout=60):
    ledger.recover(world.roots(base))
    plan = world.changes(base, "all")
    time.sleep(0.05 if plan else 0)
    ledger.commit(plan, "cpfix apply", "1.0.0")
print(len(plan))
"""

COUNT = """
import sys
from pathlib import Path
from migrator import ledger
base, counter = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(40):
    with ledger.locked([base], timeout=60):
        number = int(counter.read_text())
        counter.write_text("")
        counter.write_text(str(number + 1))
"""

HOLD = """
import sys, time
from pathlib import Path
from migrator import ledger
with ledger.locked([Path(sys.argv[1])]):
    print("held", flush=True)
    time.sleep(60)
"""


def start(code: str, *args: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_eight_start_at_once_and_one_does_the_work(tmp_path: Path) -> None:
    base = world.build(tmp_path)
    racers = [start(RACE, base) for _ in range(8)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    said = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    for racer in racers:
        out, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        said.append(int(out))
    assert sorted(said) == [0] * 7 + [3]
    assert world.is_in(base, "all")
    assert len(ledger.history(base / "left")) == 1


def test_lock_file_that_comes_and_goes_excludes(tmp_path: Path) -> None:
    """The folder is removed after each turn, so that processes wait for files that are gone."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    base = tmp_path / "root"
    base.mkdir()
    racers = [start(COUNT, base, counter) for _ in range(4)]
    for racer in racers:
        racer.communicate(timeout=60)
        assert racer.returncode == 0
    assert counter.read_text() == "160"
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("successor", [False, True])
def test_file_that_was_removed_before_it_was_locked(
    tmp_path: Path, successor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last holder removes its file between our opening and locking it; the next one may be there too."""
    flock, file = fcntl.flock, tmp_path / ".cpfix" / "lock"
    attempts = 0

    def late(handle: int, operation: int) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            file.unlink()
            if successor:
                file.touch()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with ledger.locked([tmp_path]):
        assert attempts == 2
        assert ledger.at_work([tmp_path]), "the file on the disk is the locked one"


@pytest.mark.parametrize("applied", [False, True])
def test_release_spares_the_next_holder(
    tmp_path: Path, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its own lock file as soon as ours is gone."""
    base = world.build(tmp_path, "one" if applied else "pristine")
    file = base / "left" / ".cpfix" / "lock"
    unlink = disk.unlink

    def overtaken(path: Path) -> None:
        assert not (path == file and file.read_text() == "next")
        unlink(path)
        if path == file:
            file.write_text("next")

    monkeypatch.setattr(disk, "unlink", overtaken)
    with ledger.locked([base / "left"]):
        pass
    assert file.read_text() == "next"


def test_transaction_killed_while_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds the lock is killed over more roots than we knew of when we began to wait."""
    base = world.build(tmp_path)
    faults.wreck(base, "all", faults.before_replacing("b.py"))
    involved, calls = transaction.involved, 0

    def late(roots: Iterable[Path]) -> tuple[Path, ...]:
        nonlocal calls
        calls += 1
        return (base / "right",) if calls == 1 else involved(roots)

    monkeypatch.setattr(transaction, "involved", late)
    with ledger.locked([base / "right"]):
        assert len(ledger.at_work(world.roots(base))) == 2


def test_leaves_nothing_where_nothing_was_done(tmp_path: Path) -> None:
    with ledger.locked([tmp_path]):
        assert (tmp_path / ".cpfix" / ".gitignore").read_bytes() == b"*\n"
    assert list(tmp_path.iterdir()) == []


def test_leaves_what_was_done(tmp_path: Path) -> None:
    world.build(tmp_path, "all")
    assert {file.name for file in (tmp_path / "left" / ".cpfix").iterdir()} == {
        ".gitignore",
        "journal.json",
        "originals",
    }


def test_released_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ledger.locked([tmp_path]):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_gives_up_and_names_the_holder(tmp_path: Path) -> None:
    with ledger.locked([tmp_path]):
        begin = time.monotonic()
        with (
            pytest.raises(
                EnvironmentRefuses, match=f"process {os.getpid()} on {os.uname().nodename}"
            ) as caught,
            ledger.locked([tmp_path], timeout=0.1),
        ):
            pass
        assert time.monotonic() - begin < 5
        assert str(tmp_path / ".cpfix" / "lock") in str(caught.value)
        assert ledger.at_work([tmp_path])


def test_locks_all_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    with ledger.locked([second]):
        with pytest.raises(EnvironmentRefuses), ledger.locked([first, second], timeout=0):
            pass
        assert ledger.at_work([first]) == []
    with ledger.locked([second, first, second]):
        assert len(ledger.at_work([first, second])) == 2


def test_dead_holder_holds_nothing(tmp_path: Path) -> None:
    holder = start(HOLD, tmp_path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    (said,) = ledger.at_work([tmp_path])
    assert f"process {holder.pid} on" in said
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert (tmp_path / ".cpfix" / "lock").exists()
    assert ledger.at_work([tmp_path]) == []
    with ledger.locked([tmp_path], timeout=0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_asking_who_is_at_work_writes_nothing(tmp_path: Path) -> None:
    assert ledger.at_work([tmp_path, tmp_path / "nowhere"]) == []
    assert list(tmp_path.iterdir()) == []


def test_roots_of_a_killed_transaction_are_locked_too(tmp_path: Path) -> None:
    base = world.build(tmp_path)
    faults.wreck(base, "all", faults.before_replacing("b.py"))
    with ledger.locked([base / "right"]):
        assert len(ledger.at_work(world.roots(base))) == 2


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_folder_that_cannot_be_made(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(disk, "make_dir", refuse)
    with (
        pytest.raises(EnvironmentRefuses, match=f"{os.strerror(code)}.*CPFIX_STATE_DIR") as caught,
        ledger.locked([tmp_path], timeout=60),
    ):
        pass
    assert str(tmp_path / ".cpfix") in str(caught.value)


def test_folder_that_cannot_be_written_is_no_lock_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(state, "prepare", refuse)
    with pytest.raises(EnvironmentRefuses, match="Permission denied"), ledger.locked([tmp_path], timeout=60):
        pass


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(EnvironmentRefuses, match=r"cannot lock.*CPFIX_STATE_DIR"),
        ledger.locked([tmp_path], timeout=60),
    ):
        pass


def test_no_such_root(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefuses, match="no folder"), ledger.locked([tmp_path / "nowhere"]):
        pass
    assert list(tmp_path.iterdir()) == []
