"""A transaction in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrator.ledger import disk
from migrator.ledger.draft import draft
from tests.ledger import faults, world


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return world.build(tmp_path)


def test_writes_nothing(base: Path) -> None:
    with faults.broken(faults.die, 0):
        draft(world.changes(base, "all"), "cpfix", "1.0.0")
    assert world.is_in(base, "pristine")


def test_every_temporary_file_has_its_bytes_and_every_old_one_is_kept(base: Path) -> None:
    world.move(base, "one")
    for share in draft(world.changes(base, "all"), "cpfix", "1.0.0"):
        kept = {disk.digest(data) for data in share.keep}
        for step in share.part.steps:
            assert disk.digest(share.contents[step.temp]) == step.new
            assert not step.old or step.old in kept
            assert step.temp.parent == step.target.parent


def test_upgrade_keeps_the_first_original(base: Path) -> None:
    world.move(base, "one")
    left = draft([world.change(base, world.A, 1, 2)], "cpfix", "1.0.0")[0]
    assert world.ORIGINALS[world.A] in left.keep
    assert world.content(world.A, 1) in left.keep, "to undo"


def test_temporary_names_are_distinct(base: Path) -> None:
    work = draft(world.changes(base, "all"), "cpfix", "1.0.0")
    names = [step.temp.name for share in work for step in share.part.steps]
    assert len(set(names)) == len(names) == 5
    assert all(name.startswith(".cpfix-") for name in names)


def test_last_record_takes_the_journal_along(base: Path) -> None:
    world.move(base, "all")
    for share in draft(world.changes(base, "pristine"), "cpfix", "1.0.0"):
        assert share.part.journal.old
        assert share.part.journal.new == ""
        assert share.part.journal.temp not in share.contents
