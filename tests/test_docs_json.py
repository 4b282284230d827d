"""docs/json.md names exactly the keys that the commands print."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from docs.generate import DOCS
from migrator import commands, ledger, shapes
from migrator.cli import main
from migrator.ledger import disk
from migrator.scene import Options
from migrator.verify.check import Report
from tests.clones import make_clone
from tests.sandbox import make_sandbox

CORE = {"megatron-core": "0.14.0"}


def documented(section: str) -> set[str]:
    """The keys in the tables of one section of the page."""
    parts = re.split(r"^## (.*)$", (DOCS / "json.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    body = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    return set(re.findall(r"^\| `([^`]+)` \|", body, re.MULTILINE))


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Every key of a document as the page writes it; what is null or an empty object counts as a key too."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from keys(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, f"{path}[]")
    elif path:
        yield path


def printed(*arguments: str | Path, code: int = 0) -> Any:
    """The one document that a command prints, which is all that it prints to standard output."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def interrupted(root: Path) -> None:
    """Leave behind what a command leaves that is killed while it writes."""
    changes = commands.rehearse(Options(roots=(root,))).changes
    with pytest.MonkeyPatch.context() as patch, ledger.locked([root]):
        patch.setattr(disk, "replace", _killed_at(changes[0].target, disk.replace))
        patch.setattr("migrator.ledger.writing._take_back", lambda *_: None)
        with pytest.raises(SystemExit):
            ledger.commit(changes, "apply", "0")


def _killed_at(target: Path, replace: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def replaced(source: Path, to: Path) -> None:
        if to == target:
            raise SystemExit
        replace(source, to)

    return replaced


def edited(root: Path, old: str, new: str) -> Path:
    """A copy of a tree in which somebody has changed the file that the patch of Megatron-Core edits."""
    copy = root.parent / "edited"
    shutil.copytree(root, copy)
    file = copy / "megatron/core/utils.py"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    return copy


# --- what is run for each section


def errors(tmp_path: Path) -> list[Any]:
    return [printed("status", "--root", tmp_path / "none", code=2), printed("diff", "--unheard-of", code=2)]


def status(tmp_path: Path) -> list[Any]:
    root, older = make_sandbox(tmp_path / "a", CORE), make_sandbox(tmp_path / "b", CORE)
    next(root.glob("*.dist-info")).rename(root / "megatron_core-0.13.0.dist-info")  # worth a note
    interrupted(root)
    printed("apply", "--root", older)
    journal = older / ".cpfix/journal.json"  # as another cpfix would have written it
    journal.write_text(journal.read_text().replace('"id": "skip-packed"', '"id": "of-old"'))
    clone = make_clone(tmp_path / "clone", "megatron-core", "0.14.0")
    return [printed("status", "--root", tree) for tree in (root, older, clone)]


def diff(tmp_path: Path) -> list[Any]:
    return [printed("diff", "--root", make_sandbox(tmp_path, CORE))]


def apply(tmp_path: Path) -> list[Any]:
    root = make_sandbox(tmp_path, CORE)
    unlike = edited(root, "if val is not None", "if val is not False")
    interrupted(root)
    return [
        printed("apply", "--root", unlike, code=3),
        printed("apply", "--root", root),
        printed("apply", "--root", root),
    ]


def revert(tmp_path: Path) -> list[Any]:
    root = make_sandbox(tmp_path / "a", CORE)
    printed("apply", "--root", root)
    changed = edited(root, "\n", "\n\n")
    killed = make_sandbox(tmp_path / "b", CORE)
    interrupted(killed)
    return [
        printed("revert", "--root", root),
        printed("revert", "--root", killed),
        printed("revert", "--root", changed, code=3),
    ]


def log(tmp_path: Path) -> list[Any]:
    root = make_sandbox(tmp_path, {"nemo": "2.3.3", **CORE})
    printed("apply", "--root", root, "--only", "skip-packed")
    printed("revert", "--root", root, "--only", "megatron-core/skip-packed")
    return [printed("log", "--root", root)]


def explain(tmp_path: Path) -> list[Any]:
    return [printed("explain")]


def export(tmp_path: Path) -> list[Any]:
    repository = make_clone(tmp_path / "clone", "megatron-core", "0.14.0")
    asked = ("export", "--repo", repository, "--format-patch", tmp_path / "out")
    return [printed(*asked, "--dry-run"), printed(*asked)]


def verify(tmp_path: Path) -> list[Any]:
    root = make_sandbox(tmp_path, CORE)
    stood_in = shapes.of_verification(Report((), ("torch.cuda.current_device: the CPU",)))
    return [printed("verify", "--root", root, "--level", "static", code=1), stood_in]


def container(tmp_path: Path) -> list[Any]:
    return [printed("container", "--tag", "25.09")]


COMMANDS = (status, diff, apply, revert, log, explain, export, verify, container)
SECTIONS = {
    "Errors": errors,
    **{f"`cpfix {f.__name__}`": f for f in COMMANDS},
}


@pytest.mark.upstream
@pytest.mark.parametrize("section", SECTIONS)
def test_page_names_the_keys_that_are_printed(section: str, tmp_path: Path) -> None:
    found = {key for document in SECTIONS[section](tmp_path) for key in keys(document)}
    assert found == documented(section)


def test_page_has_every_command_that_prints_json() -> None:
    found = {f"`cpfix {n}`" for n, c in main.commands.items() if any(p.name == "as_json" for p in c.params)}
    assert found == set(SECTIONS) - {"Errors"}
