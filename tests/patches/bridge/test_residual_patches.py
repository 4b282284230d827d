"""The patches for Megatron-Bridge 0.3 to 0.6 as a series: what each wheel needs, and that it can be made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from migrator import plan, series
from migrator.model import Install, Patch, PatchState, State
from tests.patches.bridge.real_code import PROJECT, VERSIONS

RESIDUAL = (
    "pipeline-metadata",
    "trim-sentinels",
    "mask-placeholder",
    "index-once",
    "prepad-loss-mask",
    "prepad-cap",
    "exact-lengths",
    "plan-params",
    "check-multiple",
)
FIXED = {  # by probes of the code
    "0.5.1": {"trim-sentinels"},
    "0.6": {"pipeline-metadata", "trim-sentinels", "mask-placeholder", "index-once", "prepad-loss-mask"},
}
OPTIONAL = "keep-eos-targets"
NO_JOURNAL = plan.Journal({}, lambda _: b"")


def ours() -> tuple[Patch, ...]:
    return tuple(p for p in series.load().of(PROJECT) if p.id in (*RESIDUAL, OPTIONAL))


def states(root: Path, version: str) -> dict[str, PatchState]:
    install = Install(PROJECT, PROJECT, version, root, "wheel", imports=True, writable=True)
    project = series.load().project(PROJECT)
    found = plan.inspect(install, project, ours(), NO_JOURNAL, plan.files_of(root, NO_JOURNAL))
    return {state.patch.id: state for state in found}


def apply(root: Path, version: str, wanted: Sequence[Patch]) -> None:
    files = plan.files_of(root, NO_JOURNAL)
    for path in dict.fromkeys(edit.file for p in wanted for edit in plan.edits_for(p, version)):
        edits = [edit for p in wanted for edit in plan.edits_for(p, version) if edit.file == path]
        raw = files(path).raw
        assert raw is not None
        (root / path).write_bytes(plan.patched(raw, edits, path))


def expected(version: str) -> dict[str, State]:
    fixed = FIXED.get(version, FIXED.get(version[:3], set()))
    found = {id: State.FIXED_UPSTREAM if id in fixed else State.NEEDED for id in RESIDUAL}
    return found | {OPTIONAL: State.NOT_APPLICABLE}


@pytest.mark.parametrize("version", VERSIONS)
def test_all_together(version: str, sandbox: Callable[..., Path]) -> None:
    root = sandbox({PROJECT: version})
    before = states(root, version)
    assert {id: state.state for id, state in before.items()} == expected(version)
    assert "--with" in before[OPTIONAL].reason
    wanted = [p for p in ours() if before[p.id].state is State.NEEDED or p.id == OPTIONAL]
    apply(root, version, wanted)
    after = states(root, version)
    assert all(after[p.id].state is State.APPLIED for p in wanted)
    assert all(after[p.id].state is before[p.id].state for p in ours() if p not in wanted)
    files = {path: path.read_bytes() for path in root.rglob("*.py")}
    apply(root, version, wanted)
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize(
    ("version", "id"),
    [
        (version, id)
        for version in ("0.3.1", "0.4.2", "0.5.0", "0.5.1", "0.6.2")
        for id, state in expected(version).items()
        if state is not State.FIXED_UPSTREAM
    ],
)
def test_each_alone(version: str, id: str, sandbox: Callable[..., Path]) -> None:
    root = sandbox({PROJECT: version})
    before = states(root, version)
    apply(root, version, [p for p in ours() if p.id == id])
    after = states(root, version)
    assert after[id].state is State.APPLIED
    assert all(after[other].state is before[other].state for other in after if other != id)


@pytest.mark.parametrize("version", ["0.1.0rc4", "0.2.0rc6"])
def test_nothing_of_it_is_meant_for_earlier_releases(version: str, sandbox: Callable[..., Path]) -> None:
    found = states(sandbox({PROJECT: version}), version)
    del found["pipeline-metadata"]  # it has edits for them
    assert {state.state for state in found.values()} == {State.NOT_APPLICABLE}


@pytest.mark.parametrize("version", ["0.3.1", "0.5.1", "0.6.2"])
def test_other_quotes_line_breaks_and_comments(version: str, sandbox: Callable[..., Path]) -> None:
    """Formatting is no obstacle: every statement on one line, other quotes, no comments."""
    root = sandbox({PROJECT: version})
    for path in root.rglob("*.py"):
        path.write_text(ast.unparse(ast.parse(path.read_text(encoding="utf-8"))), encoding="utf-8")
    before = states(root, version)
    assert {id: state.state for id, state in before.items()} == expected(version)
    wanted = [p for p in ours() if before[p.id].state is State.NEEDED]
    apply(root, version, wanted)
    after = states(root, version)
    assert all(after[p.id].state is State.APPLIED for p in wanted)
