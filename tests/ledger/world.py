"""Two import roots with three files, brought from one state to another by the ledger."""

from __future__ import annotations

import hashlib
from pathlib import Path

from migrator import ledger
from migrator.model import AppliedPatch, FileChange

Key = tuple[str, str]  # root, path

ORIGINALS: dict[Key, bytes] = {
    ("left", "nemo/a.py"): b"\xef\xbb\xbfx = 1\r\ny = 2\r\n",  # BOM, CRLF
    ("left", "nemo/b.py"): b"x = 1\r\n\ty = 2\n",  # no line end is like the other
    ("right", "megatron/c.py"): b"z = '\xe9'",  # no UTF-8, no last line end
}
A, B, C = ORIGINALS
GOALS: dict[str, dict[Key, int]] = {"pristine": {}, "one": {A: 1}, "all": {A: 2, B: 2, C: 2}}
SCENARIOS = [("pristine", "all"), ("one", "all"), ("all", "pristine"), ("all", "one")]


def roots(base: Path) -> list[Path]:
    """The import roots, not in the order in which they are locked."""
    return [base / "right", base / "left"]


def build(base: Path, goal: str = "pristine") -> Path:
    """A new world, with a compiled file beside each source."""
    for (root, path), data in ORIGINALS.items():
        file = base / root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    move(base, goal)
    for file in sources(base):
        cache = file.parent / "__pycache__"
        cache.mkdir(exist_ok=True)
        (cache / f"{file.stem}.cpython-312.pyc").write_bytes(b"compiled")
    return base


def sources(base: Path) -> list[Path]:
    """The three files."""
    return [base / root / path for root, path in ORIGINALS]


def content(key: Key, version: int) -> bytes:
    """A file's bytes under a version of its patch; 0 is the original."""
    return ORIGINALS[key] + f"# patched, version {version}\n".encode() if version else ORIGINALS[key]


def versions(base: Path) -> dict[Key, int]:
    """What the journals say is applied."""
    return {
        (root, path): int(record.patches[0].fingerprint)
        for root in ("left", "right")
        for path, record in ledger.records(base / root).items()
    }


def change(base: Path, key: Key, old: int, new: int) -> FileChange:
    """From one version of the patch of a file to another."""
    patches = (AppliedPatch("nemo", "thd-split", str(new), "1.0.0"),) if new else ()
    return FileChange(
        root=base / key[0],
        path=key[1],
        old=content(key, old),
        new=content(key, new),
        original=ORIGINALS[key],
        patches=patches,
    )


def changes(base: Path, goal: str) -> list[FileChange]:
    """What has to be written to get there."""
    now, then = versions(base), GOALS[goal]
    return [
        change(base, key, now.get(key, 0), then.get(key, 0))
        for key in ORIGINALS
        if now.get(key, 0) != then.get(key, 0)
    ]


def move(base: Path, goal: str) -> None:
    """What a command does that writes."""
    with ledger.locked(roots(base), timeout=10):
        ledger.recover(roots(base))
        assert ledger.commit(changes(base, goal), f"cpfix {goal}", "1.0.0") == []


def repair(base: Path) -> list[str]:
    """What a command does after another was killed."""
    with ledger.locked(roots(base), timeout=10):
        return ledger.recover(roots(base))


def compiled(base: Path) -> set[Key]:
    """The sources whose compiled file is still there."""
    return {
        (root, path)
        for root, path in ORIGINALS
        if any((base / root / path).parent.glob(f"__pycache__/{Path(path).stem}.*.pyc"))
    }


def is_in(base: Path, goal: str) -> bool:
    """True where files, journals and the rest of both trees are what the goal says, to the last file name."""
    then = GOALS[goal]
    expected = {
        base / root / path: content((root, path), then.get((root, path), 0)) for root, path in ORIGINALS
    }
    for key in then:
        state = ledger.state_dir(base / key[0])
        expected[state / ".gitignore"] = b"*\n"
        expected[state / "originals" / hashlib.sha256(ORIGINALS[key]).hexdigest()] = ORIGINALS[key]
    found = {
        file: file.read_bytes()
        for file in base.rglob("*")
        if file.is_file() and file.suffix != ".pyc" and file.name != "journal.json"
    }
    journals = {file.relative_to(base).parts[0] for file in base.rglob("journal.json")}
    return versions(base) == then and found == expected and journals == {root for root, _ in then}
