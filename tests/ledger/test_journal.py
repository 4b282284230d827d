"""What the journal remembers, and what it makes of damage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrator import ledger
from migrator.ledger import disk, journal
from migrator.model import AppliedPatch, CannotApply, EnvironmentRefuses, FileRecord
from tests.ledger import faults, world


def test_nothing_known(tmp_path: Path) -> None:
    assert ledger.records(tmp_path) == {}
    assert ledger.history(tmp_path) == []
    assert ledger.records(tmp_path / "nowhere") == {}
    assert list(tmp_path.iterdir()) == []


def test_records(tmp_path: Path) -> None:
    root = world.build(tmp_path, "one") / "left"
    record = FileRecord(
        root=root,
        path="nemo/a.py",
        before=disk.digest(world.ORIGINALS[world.A]),
        after=disk.digest(world.content(world.A, 1)),
        patches=(AppliedPatch("nemo", "thd-split", "1", "1.0.0"),),
    )
    assert ledger.records(root) == {"nemo/a.py": record}
    assert ledger.original(root, record) == world.ORIGINALS[world.A]


def test_history(tmp_path: Path) -> None:
    base = world.build(tmp_path, "one")
    world.move(base, "all")
    world.move(base, "one")
    first, second, third = ledger.history(base / "left")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.time)
    assert (first.command, first.cpfix, first.files) == ("cpfix one", "1.0.0", ("nemo/a.py",))
    assert (first.applied, first.removed) == (("nemo/thd-split",), ())
    assert second.files == ("nemo/a.py", "nemo/b.py")
    assert (second.applied, second.removed) == (("nemo/thd-split",), ("nemo/thd-split",)), "a new version"
    assert third.command == "cpfix one"
    assert ledger.history(base / "right") == []


def test_reading_writes_nothing(tmp_path: Path) -> None:
    base = world.build(tmp_path, "all")
    with faults.broken(faults.die, 0):
        (record, _) = ledger.records(base / "left").values()
        ledger.original(base / "left", record)
        ledger.history(base / "left")
    assert world.is_in(base, "all")


def test_moved_root(tmp_path: Path) -> None:
    base = world.build(tmp_path / "before", "all").rename(tmp_path / "after")
    record = ledger.records(base / "left")["nemo/a.py"]
    assert record.root == base / "left"
    assert ledger.original(base / "left", record) == world.ORIGINALS[world.A]
    world.move(base, "pristine")
    assert world.is_in(base, "pristine")


def test_read_by_people(tmp_path: Path) -> None:
    base = world.build(tmp_path, "one")
    text = (base / "left" / ".cpfix" / "journal.json").read_text()
    assert text.startswith('{\n "format": 1,\n "files": {\n  "nemo/a.py": {\n')
    assert str(tmp_path) not in text


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def edited(data: bytes) -> bytes:
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return edited


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: b"\xff\xfe" + data,
        lambda data: b"[]",
        edit(lambda document: document.pop("format")),
        edit(lambda document: document.pop("files")),
        edit(lambda document: document.pop("history")),
        edit(lambda document: document.update(files=[])),
        edit(lambda document: document.update(history={})),
        edit(lambda document: document["files"]["nemo/a.py"].update(before="../../etc/passwd")),
        edit(lambda document: document["files"]["nemo/a.py"].update(after=None)),
        edit(lambda document: document["files"]["nemo/a.py"].update(patches=["x"])),
        edit(lambda document: document["files"].update({"../x.py": document["files"]["nemo/a.py"]})),
        edit(lambda document: document["files"].update({"/x.py": document["files"]["nemo/a.py"]})),
        edit(lambda document: document["history"][0].update(files="nemo")),
    ],
)
def test_damaged(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    base = world.build(tmp_path, "one")
    file = base / "left" / ".cpfix" / "journal.json"
    file.write_bytes(damage(file.read_bytes()))
    for read in (ledger.records, ledger.history):
        with pytest.raises(CannotApply, match=r"journal\.json is damaged.*Reinstall") as caught:
            read(base / "left")
        assert str(file) in str(caught.value)
    with pytest.raises(CannotApply, match=r"journal\.json is damaged"):
        ledger.commit([world.change(base, world.B, 0, 1)], "cpfix", "1.0.0")


def test_newer_format(tmp_path: Path) -> None:
    base = world.build(tmp_path, "one")
    file = base / "left" / ".cpfix" / "journal.json"
    file.write_bytes(edit(lambda document: document.update(format=2))(file.read_bytes()))
    with pytest.raises(CannotApply, match=r"format 2, this cpfix reads 1"):
        ledger.records(base / "left")


def test_not_allowed_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(EnvironmentRefuses, match=r"journal\.json cannot be read \(Permission denied\)"):
        ledger.records(tmp_path)


def test_render_and_read(tmp_path: Path) -> None:
    base = world.build(tmp_path, "all")
    book = journal.read(base / "left")
    assert journal.render(book) == (base / "left" / ".cpfix" / "journal.json").read_bytes()
    assert journal.render(journal.Journal({}, book.history)) is None
    assert journal.referenced(book) == {disk.digest(world.ORIGINALS[key]) for key in (world.A, world.B)}
