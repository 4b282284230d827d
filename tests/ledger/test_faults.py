"""Killed or refused at every single effect on the disk: all files are old, or all are new."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from migrator import ledger
from migrator.model import EnvironmentRefuses, FileChange
from tests.ledger import faults, world


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory where that can be had: the tests here make thousands of small files."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a killed process loses nothing that is on its way
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def killed() -> Iterator[faults.Killer]:
    with faults.Killer() as killer:
        yield killer


def full(name: str, args: tuple[Any, ...]) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(args[0]))


def worlds(base: Path, goal: str) -> Iterator[tuple[int, Path]]:
    """The same world again and again."""
    template = world.build(base / "template", goal)
    for k in count():
        yield k, shutil.copytree(template, base / str(k))
        shutil.rmtree(base / str(k))


def outcome(plan: list[FileChange]) -> str:
    """What `commit` says, by its remarks or by its error."""
    try:
        return " ".join(ledger.commit(plan, "cpfix", "1.0.0"))
    except EnvironmentRefuses as error:
        return str(error)


def which(base: Path, old: str, new: str) -> str:
    (state,) = (goal for goal in (old, new) if world.is_in(base, goal))
    return state


@pytest.mark.parametrize(("old", "new"), world.SCENARIOS)
def test_killed_at_each_effect(killed: faults.Killer, quick: Path, old: str, new: str) -> None:
    ends = []
    moved = {key for key in world.ORIGINALS if world.GOALS[old].get(key) != world.GOALS[new].get(key)}
    for k, base in worlds(quick, old):
        if not killed(base, new, k):
            assert world.is_in(base, new)
            break
        reported = ledger.pending(world.roots(base))
        said = world.repair(base)
        assert len(said) == len(reported) <= 1
        ends.append(which(base, old, new))
        if ends[-1] == new:
            assert world.compiled(base) == set(world.ORIGINALS) - moved
        if said:
            assert {old: "old state", new: "new state"}[ends[-1]] in said[0]
        assert ledger.pending(world.roots(base)) == []
        assert world.repair(base) == []
        if k % 4 == 0:
            world.move(base, new)
            assert world.is_in(base, new)
    assert ends == sorted(ends, key=[old, new].index), "once committed, it stays so"
    assert set(ends) == {old, new}
    assert len(ends) > 40


def test_killed_while_repairing(killed: faults.Killer, quick: Path) -> None:
    ends = []
    for k, base in worlds(quick, "one"):
        if not killed(base, "all", k):
            break
        waiting = ledger.pending(world.roots(base))
        committed = any("has written all" in sentence for sentence in waiting)
        if not waiting or k % (3 if committed else 8):
            continue
        wreck = shutil.copytree(base, quick / "wreck")
        for j in count():
            again = shutil.copytree(wreck, quick / "again")
            over = not killed(again, "", j)
            world.repair(again)
            ends.append(which(again, "one", "all"))
            shutil.rmtree(again)
            if over:
                break
        shutil.rmtree(wreck)
    assert set(ends) == {"one", "all"}


@pytest.mark.parametrize(("old", "new"), world.SCENARIOS[1:3])
def test_refused_at_each_effect(quick: Path, old: str, new: str) -> None:
    ends = []
    for k, base in worlds(quick, old):
        plan = world.changes(base, new)
        with ledger.locked(world.roots(base)), faults.broken(full, k) as names:
            told = outcome(plan)
        if len(names) <= k:
            assert told == ""
            break
        is_new = told == "" or told.startswith("Everything is written")
        assert is_new or ("No space left" in told and told.endswith("Nothing was changed."))
        ends.append(new if is_new else old)
        world.repair(base)
        assert which(base, old, new) == ends[-1]
    assert ends == sorted(ends, key=[old, new].index)
    assert set(ends) == {old, new}


@pytest.mark.parametrize(("old", "new"), world.SCENARIOS[0::3])
def test_disk_that_stays_broken(quick: Path, old: str, new: str) -> None:
    failed_twice = 0
    for k, base in worlds(quick, old):
        plan = world.changes(base, new)
        with ledger.locked(world.roots(base)), faults.broken(full, k, forever=True) as names:
            told = outcome(plan)
        if len(names) <= k:
            break
        unended = ledger.pending(world.roots(base))
        if "failed as well" in told:
            failed_twice += 1
            assert unended
        is_new = told.startswith("Everything is written")
        assert is_new or unended or told.endswith("Nothing was changed.")
        world.repair(base)
        assert world.is_in(base, new if is_new else old)
    assert failed_twice > 5


def test_interrupt_is_undone_and_passed_on(quick: Path) -> None:
    def interrupt(name: str, args: tuple[Any, ...]) -> None:
        raise KeyboardInterrupt

    ends = []
    for k, base in worlds(quick, "one"):
        with ledger.locked(world.roots(base)), faults.broken(interrupt, k) as names:
            try:
                ledger.commit(world.changes(base, "all"), "cpfix", "1.0.0")
            except KeyboardInterrupt:
                pass
            else:
                assert len(names) <= k
                break
        world.repair(base)
        ends.append(which(base, "one", "all"))
    assert set(ends) == {"one", "all"}
