"""Before 0.3, release candidates bear the number of a release of another shape: each gets its own edits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures import fetch
from migrator import plan, series
from migrator.match import find
from migrator.model import Edit, Hunk, Insert, Install, PatchState, State
from migrator.source import Module, parse
from tests.patches.bridge.before_03 import ALL, LOOK_ALIKE, PROJECT, RELEASE, RELEASES, VERSIONS, tree

SERIES = series.load()
PATCHES = [patch for patch in SERIES.of(PROJECT) if patch.id in ALL]
NOTHING = plan.Journal({}, lambda record: b"")
WHEELS = [
    wheel.version
    for wheel in fetch.lock()
    if wheel.project == PROJECT and wheel.version.startswith(("0.1", "0.2"))
]


def states(root: Path, version: str, files: plan.Files) -> list[PatchState]:
    """What the engine says of the four patches."""
    number = RELEASE if version in RELEASES else version
    install = Install(PROJECT, PROJECT, number, root, "wheel", imports=True, writable=True)
    project = next(p for p in SERIES.projects if p.name == PROJECT)
    return plan.inspect(install, project, PATCHES, NOTHING, files)


@pytest.mark.parametrize("version", [*WHEELS, *RELEASES])
def test_every_release_is_needed_and_then_applied(version: str) -> None:
    root = tree(version)
    before = plan.files_of(root, NOTHING)
    assert [state.state for state in states(root, version, before)] == [State.NEEDED] * 4
    number = RELEASE if version in RELEASES else version
    edits = [edit for patch in PATCHES for edit in plan.edits_for(patch, number, before)]
    new: dict[str, bytes] = {}
    for path in dict.fromkeys(edit.file for edit in edits):
        raw = before(path).raw
        assert raw is not None
        new[path] = plan.patched(raw, [edit for edit in edits if edit.file == path], path)

    def after(path: str) -> plan.File:
        return replace(before(path), raw=new[path], module=parse(new[path])) if path in new else before(path)

    assert [state.state for state in states(root, version, after)] == [State.APPLIED] * 4
    assert plan.patched(new[path], [edit for edit in edits if edit.file == path], path) == new[path]
    steps = {
        name for name in ("vlm_step", "llava_step") if (root / f"megatron/bridge/training/{name}.py").exists()
    }
    assert {Path(path).stem for path in new} >= steps


def altered(edit: Edit, module: Module) -> bytes | None:
    """The module with the first line that an edit looks for changed by somebody."""
    rows = "".join(module.rows).split("\n")
    if isinstance(edit, Insert):
        return "\n".join(
            re.sub(rf"^(def|class) {edit.before}\b", rf"\1 {edit.before}_", row) for row in rows
        ).encode()
    site = find(edit, module).site
    if not isinstance(edit, Hunk) or site is None:
        return None
    line = next(line for line in site.lines if line is not None)
    row = rows[line.row]
    if line.kind == "statement":
        end = getattr(line.node, "end_lineno", line.row + 1)
        rows[line.row : end] = [row[: len(row) - len(row.lstrip())] + "changed()"]
    else:
        rows[line.row] = row.replace("if ", "if changed() and ", 1).replace("def ", "def changed_", 1)
    return "\n".join(rows).encode()


@pytest.mark.parametrize("version", VERSIONS)
def test_no_edit_is_left_out_silently(version: str) -> None:
    """A shape that lacks what one edit looks for is a conflict, and no other shape that has less to do."""
    root = tree(version)
    files = plan.files_of(root, NOTHING)
    number = RELEASE if version in RELEASES else version
    tried = 0
    for place, patch in enumerate(PATCHES):
        for edit in plan.edits_for(patch, number, files):
            module = files(edit.file).module
            assert module is not None
            if (raw := altered(edit, module)) is None:
                continue
            changed = replace(files(edit.file), raw=raw, module=parse(raw))
            state = states(root, version, _with(files, changed))[place]
            assert state.state is State.CONFLICT, (patch.id, edit)
            tried += 1
    assert tried > 25


def _with(files: plan.Files, changed: plan.File) -> plan.Files:
    return lambda path: changed if path == changed.path else files(path)


def test_the_look_alike_is_of_the_releases_shape() -> None:
    assert (
        not (LOOK_ALIKE / "megatron/bridge/training/gpt_step.py")
        .read_text()
        .count("def get_packed_seq_params")
    )
    for name in ("vlm_step", "llava_step", "utils/packed_seq_utils"):
        assert (LOOK_ALIKE / f"megatron/bridge/training/{name}.py").exists()
