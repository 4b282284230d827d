"""Where the state directory is, and what it keeps."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from migrator.ledger import disk, state
from migrator.model import CannotApply
from tests.ledger import world

X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # sha256 of b"x"


def test_in_the_import_root(tmp_path: Path) -> None:
    assert state.state_dir(tmp_path) == tmp_path / ".cpfix"


def test_of_the_real_root(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib64").symlink_to("lib")
    assert state.state_dir(tmp_path / "lib64") == tmp_path / "lib" / ".cpfix"


def test_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPFIX_STATE_DIR", str(tmp_path / "state"))
    roots = [Path("/opt/NeMo"), Path("/opt/megatron-lm"), Path("/opt-NeMo"), Path("/"), Path("/a" * 200)]
    found = [state.state_dir(root) for root in roots]
    assert found == [state.state_dir(root) for root in roots]
    assert len(set(found)) == len(roots)
    assert {folder.parent for folder in found} == {tmp_path / "state"}
    assert re.fullmatch(r"opt-NeMo-[0-9a-f]{10}", found[0].name)
    assert re.fullmatch(r"root-[0-9a-f]{10}", found[3].name)
    assert len(found[4].name) < 64


def test_elsewhere_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPFIX_STATE_DIR", str(tmp_path / "state"))
    base = world.build(tmp_path / "base", "all")
    assert not list(base.rglob(".cpfix"))
    assert len(list((tmp_path / "state").iterdir())) == 2
    world.move(base, "pristine")
    assert list((tmp_path / "state").iterdir()) == []


def test_git_does_not_see_it(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    state.prepare(state.state_dir(tmp_path))
    state.keep(state.state_dir(tmp_path), [b"x"])
    assert subprocess.check_output([*git, "status", "--porcelain", "--untracked-files=all"]) == b""


def test_keeps_each_content_once(tmp_path: Path) -> None:
    state.prepare(tmp_path)
    state.keep(tmp_path, [b"x", b"", b"x"])
    state.keep(tmp_path, [b"x"])
    assert {file.name for file in (tmp_path / "originals").iterdir()} == {X, disk.digest(b"")}
    assert state.kept(tmp_path, X) == b"x"


def test_keeping_mends_what_is_damaged(tmp_path: Path) -> None:
    state.keep(tmp_path, [b"x"])
    (tmp_path / "originals" / X).write_bytes(b"rot")
    state.keep(tmp_path, [b"x"])
    assert state.kept(tmp_path, X) == b"x"


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"rot"), Path.unlink])
def test_lost_original(tmp_path: Path, damage: object) -> None:
    state.keep(tmp_path, [b"x"])
    assert callable(damage)
    damage(tmp_path / "originals" / X)
    with pytest.raises(CannotApply, match=rf"{X}: .* lost .*Reinstall"):
        state.kept(tmp_path, X)


def test_sweep_drops_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    state.prepare(folder)
    state.keep(folder, [b"x", b"y"])
    (folder / "originals" / "half.new").write_bytes(b"")
    (folder / "transaction.json.new").write_bytes(b"")
    (folder / "journal.json").write_bytes(b"{}")
    state.sweep(folder, {X})
    assert {file.name for file in folder.iterdir()} == {".gitignore", "journal.json", "originals"}
    assert [file.name for file in (folder / "originals").iterdir()] == [X]
    (folder / "journal.json").unlink()
    state.sweep(folder, set())
    assert not folder.exists()
    state.sweep(folder, set())


def test_vacate_spares_what_it_does_not_know(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    state.prepare(folder)
    (folder / "notes.txt").write_bytes(b"")
    state.vacate(folder, {".gitignore"})
    assert {file.name for file in folder.iterdir()} == {".gitignore", "notes.txt"}
