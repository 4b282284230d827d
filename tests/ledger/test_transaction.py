"""The write-ahead record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from migrator.ledger import state, transaction
from migrator.ledger.transaction import Header, Part, Step
from migrator.model import CannotApply
from tests.ledger import faults, world

HEADER = Header("0123456789abcdef", "2025-10-01T12:00:00Z", "cpfix apply", "1.0.0", "412 on node7")


def part(root: Path, *roots: Path) -> Part:
    state.prepare(state.state_dir(root))
    target = root / "nemo" / "a.py"
    book = state.state_dir(root) / "journal.json"
    return Part(
        header=HEADER,
        root=root,
        roots=roots,
        files=(Step(target, target.parent / ".cpfix-0", "a" * 64, "b" * 64),),
        journal=Step(book, book.parent / ".cpfix-1", "", "c" * 64),
    )


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Part, Part]:
    left, right = tmp_path / "left", tmp_path / "far" / "right"
    left.mkdir()
    right.mkdir(parents=True)
    return part(left, left, right), part(right, left, right)


def test_written_and_read(pair: tuple[Part, Part]) -> None:
    for share in pair:
        transaction.write(share)
        assert transaction.read(share.root) == share
        assert str(share.root.parent) not in share.record.read_text()
    assert transaction.parts(pair[1]) == pair


def test_none(tmp_path: Path) -> None:
    assert transaction.read(tmp_path) is None
    assert transaction.unended([tmp_path]) == ()
    assert transaction.involved([tmp_path]) == (tmp_path,)


def test_one_transaction_is_reported_once(pair: tuple[Part, Part]) -> None:
    for share in pair:
        transaction.write(share)
    assert transaction.unended([pair[1].root, pair[0].root]) == (pair,)
    assert transaction.unended([pair[1].root]) == (pair,)
    assert set(transaction.involved([pair[1].root])) == {share.root for share in pair}


def test_one_that_ends_while_it_is_read_is_none(
    pair: tuple[Part, Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = transaction.read

    def read_and_lose(root: Path) -> Part | None:
        found = read(root)
        for share in pair:
            share.record.unlink(missing_ok=True)
        return found

    for call in (transaction.unended, transaction.involved):
        for share in pair:
            transaction.write(share)
        monkeypatch.setattr(transaction, "read", read_and_lose)
        assert set(call([pair[0].root])) <= {pair[0].root}
        monkeypatch.undo()


def test_only_the_coordinator_decides(pair: tuple[Part, Part]) -> None:
    coordinator, other = pair
    assert not transaction.is_committed(pair)
    assert not transaction.is_committed([coordinator, replace(other, committed=True)])
    assert transaction.is_committed([replace(coordinator, committed=True), other])
    assert not transaction.is_committed([other])


def test_record_of_another_transaction_is_no_part(pair: tuple[Part, Part]) -> None:
    coordinator, other = pair
    transaction.write(replace(coordinator, header=replace(HEADER, id="fedcba9876543210"), committed=True))
    transaction.write(other)
    assert transaction.parts(other) == (other,)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"path": "nemo/a.py"', '"path": "../../a.py"'),
        ('"temp": ".cpfix-0"', '"temp": "/etc/passwd"'),
        ("a" * 64, "a" * 63),
        ('"roots"', '"raats"'),
        ('".",', ""),
        ('"format": 1', '"format": {}'),
    ],
)
def test_damaged(pair: tuple[Part, Part], old: str, new: str) -> None:
    transaction.write(pair[0])
    text = pair[0].record.read_text()
    assert old in text
    pair[0].record.write_text(text.replace(old, new))
    with pytest.raises(CannotApply, match=r"transaction\.json (is damaged|has format)"):
        transaction.read(pair[0].root)


def test_real_file_behind_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real.py").touch()
    (tmp_path / "link.py").symlink_to("real.py")
    step = Step(tmp_path / "link.py", tmp_path / "temp", "", "")
    assert step.real == step.like == tmp_path / "real.py"
    assert replace(step, target=tmp_path / "nowhere.py").like is None


def test_record_of_a_real_transaction(tmp_path: Path) -> None:
    base = world.build(tmp_path)
    faults.wreck(base, "all", faults.before_replacing("b.py"))
    left = transaction.read(base / "left")
    assert left is not None
    assert left.coordinates
    assert [step.target for step in left.files] == [base / "left" / "nemo/a.py", base / "left" / "nemo/b.py"]
    assert [step.temp.exists() for step in left.steps] == [False, True, True]
    assert left.roots == (base / "left", base / "right")
