"""Every patch on real code, made by halves: any edit without the others is seen, and never made on top."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from migrator import series
from migrator.files import File, Files, Journal, files_of
from migrator.match import Found, find
from migrator.model import Edit, Install, Patch, PatchState, State
from migrator.plan import inspect
from migrator.ranges import edits_for
from migrator.rewrite import rewrite
from migrator.source import Definition, parse

VERSIONS = [
    ("nemo", "2.3.3"),
    ("nemo", "2.4.0"),
    ("nemo", "2.5.3"),
    ("nemo", "2.7.1"),
    ("megatron-core", "0.12.3"),
    ("megatron-core", "0.14.0"),
    ("megatron-core", "0.17.0"),
    ("megatron-bridge", "0.1.0rc3"),
    ("megatron-bridge", "0.2.0rc6"),
    ("megatron-bridge", "0.3.1"),
    ("megatron-bridge", "0.4.2"),
    ("megatron-bridge", "0.5.0"),
    ("megatron-bridge", "0.6.2"),
]
NO_JOURNAL = Journal({}, lambda _: b"")
Upstream = Callable[[str, str], Path]


def put_in(files: Files, contents: Mapping[str, bytes]) -> Files:
    """The files with other bytes for some of them."""
    changed = {path: replace(files(path), raw=raw, module=parse(raw)) for path, raw in contents.items()}
    return lambda path: changed.get(path) or files(path)


def made(edits: Sequence[Edit], files: Files) -> Files:
    """The files with these edits, and no others, made."""
    contents: dict[str, bytes] = {}
    for path in dict.fromkeys(e.file for e in edits):
        module = files(path).module
        assert module is not None
        contents[path] = rewrite(module, [e for e in edits if e.file == path])
    return put_in(files, contents)


def without(gone: str, files: Files) -> Files:
    """The files without one of them."""
    return lambda path: File(gone, None, None, f"there is no {gone}") if path == gone else files(path)


def needed(install: Install, files: Files) -> list[tuple[Patch, tuple[Edit, ...]]]:
    """The patches with work to do, the optional ones too, and their edits."""
    project = series.load().project(install.project)
    patches = [replace(p, default=True) for p in series.load().of(install.project)]
    return [
        (s.patch, edits_for(s.patch, install.version, files))
        for s in inspect(install, project, patches, NO_JOURNAL, files)
        if s.state is State.NEEDED
    ]


def state(patch: Patch, install: Install, files: Files) -> PatchState:
    """The state of one patch."""
    (found,) = inspect(install, series.load().project(install.project), [patch], NO_JOURNAL, files)
    return found


@pytest.fixture
def found(upstream: Upstream, project: str, version: str) -> tuple[Install, Files]:
    """An unpacked wheel."""
    root = upstream(project, version)
    return Install(project, project, version, root, "wheel", True, True), files_of(root, NO_JOURNAL)


@pytest.mark.parametrize(("project", "version"), VERSIONS)
def test_one_edit_without_the_others_is_partial(found: tuple[Install, Files]) -> None:
    install, files = found
    cases = [(p, edits, e) for p, edits in needed(install, files) if len(edits) > 1 for e in edits]
    assert cases
    for patch, _, edit in cases:
        seen = state(patch, install, made([edit], files))
        assert seen.state is State.PARTIAL, (patch.name, edit, seen.reason)
        assert "already there" in seen.reason


@pytest.mark.parametrize(("project", "version"), VERSIONS)
def test_all_edits_but_one_are_partial(found: tuple[Install, Files]) -> None:
    install, files = found
    for patch, edits in needed(install, files):
        for edit in edits if len(edits) > 1 else ():
            others = [e for e in edits if e is not edit]
            seen = state(patch, install, made(others, files))
            assert seen.state is State.PARTIAL, (patch.name, edit, seen.reason)


@pytest.mark.parametrize(("project", "version"), VERSIONS)
def test_all_edits_are_applied_and_none_is_found_twice(found: tuple[Install, Files]) -> None:
    install, files = found
    for patch, edits in needed(install, files):
        done = made(edits, files)
        assert state(patch, install, done).state is State.APPLIED
        for edit in edits:
            module = done(edit.file).module
            assert module is not None
            assert find(edit, module).found is Found.DONE


@pytest.mark.parametrize(("project", "version"), VERSIONS)
def test_a_missing_file_is_a_conflict_or_partial_never_fine(found: tuple[Install, Files]) -> None:
    install, files = found
    for patch, edits in needed(install, files):
        for gone in dict.fromkeys(e.file for e in edits):
            seen = state(patch, install, without(gone, files))
            assert seen.state is State.CONFLICT, (patch.name, gone)
            assert f"there is no {gone}" in seen.reason


def altered(edit: Edit, files: Files) -> Files:
    """The files after somebody has changed what an edit holds on to: a statement, or a definition's name."""
    file = files(edit.file)
    assert file.module is not None
    rows = list(file.module.rows)
    finding = find(edit, file.module)
    lines = finding.site.lines if finding.site else ()
    node = next((ln.node for ln in lines if ln and ln.kind == "statement"), None)
    if isinstance(node, ast.stmt):
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        rows[first:last] = [f"{rows[first][: node.col_offset]}altered = 'by somebody'\n"]
    else:
        scope = finding.scope
        assert isinstance(scope, Definition)
        rows[scope.lineno - 1] = rows[scope.lineno - 1].replace(scope.name, f"{scope.name}_altered", 1)
    return put_in(files, {edit.file: file.module.encode(rows)})


@pytest.mark.parametrize(("project", "version"), VERSIONS)
def test_an_altered_anchor_is_a_conflict_that_says_where(found: tuple[Install, Files]) -> None:
    install, files = found
    for patch, edits in needed(install, files):
        for edit in edits:
            seen = state(patch, install, altered(edit, files))
            assert seen.state is State.CONFLICT, (patch.name, edit, seen.reason)
            scope = (
                getattr(edit, "scope", None) or getattr(edit, "function", None) or getattr(edit, "before", "")
            )
            assert f"{edit.file}, {scope or 'the module'}: " in seen.reason, (patch.name, edit, seen.reason)
