"""The states that a patch goes through on real code, and on the same code laid out otherwise."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from migrator import plan, series
from migrator.model import Edit, PatchState, State
from migrator.scene import Options, look
from tests.sandbox import make_sandbox


def state(root: Path, name: str) -> PatchState:
    """The state of `project/id` on the copy below `root`."""
    found = {s.patch.name: s for s in look(Options(roots=(root,))).states}
    return found[name]


def check_needed_then_applied(name: str, version: str, folder: Path) -> None:
    """The patch is needed, and once written it reads back as applied. So it is in the source with other
    quotes and line breaks and without comments, and the result is the same code."""
    as_released = _written(name, version, folder / "as released", lambda raw: raw)
    reformatted = _written(name, version, folder / "reformatted", _reformatted)
    assert as_released == reformatted


def _written(name: str, version: str, folder: Path, layout: Callable[[bytes], bytes]) -> dict[str, str]:
    project, _ = name.split("/")
    root = make_sandbox(folder, {project: version})
    edits = _edits(name, version)
    for file in edits:
        (root / file).write_bytes(layout((root / file).read_bytes()))
    assert state(root, name).state is State.NEEDED
    for file, here in edits.items():
        (root / file).write_bytes(plan.patched((root / file).read_bytes(), here, file))
    assert state(root, name).state is State.APPLIED
    return {file: ast.dump(ast.parse((root / file).read_bytes())) for file in edits}


def _edits(name: str, version: str) -> dict[str, list[Edit]]:
    (patch,) = [patch for patch in series.load().patches if patch.name == name]
    edits = plan.edits_for(patch, version)
    return {file: [e for e in edits if e.file == file] for file in dict.fromkeys(e.file for e in edits)}


def _reformatted(raw: bytes) -> bytes:
    return ast.unparse(ast.parse(raw)).encode()


def check_elsewhere(name: str, version: str, folder: Path) -> None:
    """Beyond the patch's range: not applicable, and in doubt where the release is not known either."""
    project, _ = name.split("/")
    assert state(make_sandbox(folder / "3", {project: "3.0.0"}), name).state is State.NOT_APPLICABLE
    root = make_sandbox(folder / "9", {project: version})
    (file,) = root.glob("*/package_info.py")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("\nMAJOR = 2\n", "\nMAJOR = 9\n"), encoding="utf-8")
    found = state(root, name)
    assert found.state is State.NOT_APPLICABLE
    assert found.in_doubt


def replaced(name: str, version: str, folder: Path, file: str, *changes: str) -> PatchState:
    """The state of a patch where parts of a file of the release read otherwise: old, new, old, new, ..."""
    project, _ = name.split("/")
    root = make_sandbox(folder, {project: version})
    text = (root / file).read_text(encoding="utf-8")
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (root / file).write_text(text, encoding="utf-8")
    return state(root, name)
