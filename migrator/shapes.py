"""The objects that `--json` prints, as docs/json.md describes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migrator import __version__
from migrator.commands import Failure, Outcome
from migrator.ledger import Entry
from migrator.model import FileChange, Install, Patch, PatchState
from migrator.scene import Scene
from migrator.verify.check import Report, to_json

if TYPE_CHECKING:
    from migrator.export import Export

Json = dict[str, Any]


def of_status(scene: Scene, states: Sequence[PatchState], container: str) -> Json:
    """`cpfix status`."""
    return {
        "cpfix": __version__,
        "installs": [_install(i) for i in scene.installs],
        "patches": [_state(s) for s in states],
        "pending": [*scene.pending, *scene.busy],
        "outdated": [str(path) for path in scene.outdated],
        "container": container,
    }


def of_outcome(result: Outcome, *, dry_run: bool) -> Json:
    """`cpfix apply` and `cpfix revert`."""
    return {
        "changed": [_change(c) for c in result.written],
        "patches": [_state(s) for s in result.states],
        "failed": [_failure(f) for f in result.failed],
        "messages": list(result.messages),
        "written": bool(result.written) and not dry_run,
        "verification": None if result.proof is None else of_verification(result.proof),
    }


def of_diff(diffs: Mapping[Path, bytes]) -> Json:
    """`cpfix diff`, by the folder in which `git apply` takes each."""
    return {
        "trees": [{"top": str(top), "diff": raw.decode(errors="replace")} for top, raw in diffs.items()],
    }


def of_log(entries: Sequence[tuple[Path, Entry]]) -> Json:
    """`cpfix log`."""
    return {"entries": [{"root": str(root), **asdict(entry)} for root, entry in entries]}


def of_verification(found: Report) -> Json:
    """`cpfix verify`."""
    return {
        "cpfix": __version__,
        "exit_code": found.exit_code,
        "levels": list(found.levels),
        "checks": [to_json(check) for check in found.checks],
        "stubs": list(found.stubs),
        "pictures": dict(found.pictures),
    }


def of_patches(patches: Sequence[Patch]) -> Json:
    """`cpfix explain`."""
    return {"patches": [_explained(patch) for patch in patches]}


def of_export(result: Export) -> Json:
    """`cpfix export`."""
    return {
        "project": result.project.name,
        "version": result.version,
        "repository": str(result.top),
        "base": result.base,
        "commit": result.commit,
        "patches": [_state(s) for s in result.states],
        "branches": [
            {
                "name": b.name,
                "commit": b.tip,
                "folder": str(b.folder or ""),
                "commits": [
                    {"patch": c.patch.name, "title": c.patch.title, "files": [e.path for e in c.files]}
                    for c in b.commits
                ],
            }
            for b in result.branches
        ],
        "written": result.written,
    }


def places(patch: Patch) -> list[str]:
    """Versions and file of each edit."""
    return list(dict.fromkeys(f"{edit.versions}  {edit.file}" for edit in patch.edits))


def _install(install: Install) -> Json:
    git = install.git
    return {
        "project": install.project,
        "distribution": install.distribution,
        "version": install.version,
        "root": str(install.root),
        "kind": install.kind,
        "imports": install.imports,
        "writable": install.writable,
        "git": None if git is None else {"head": git.head, "dirty": git.dirty},
        "notes": list(install.notes),
    }


def _state(state: PatchState) -> Json:
    return {
        "project": state.patch.project,
        "id": state.patch.id,
        "title": state.patch.title,
        "root": str(state.install.root),
        "version": state.install.version,
        "state": state.state.value,
        "reason": state.reason,
        "files": list(state.files),
    }


def _change(change: FileChange) -> Json:
    before, after = (hashlib.sha256(raw).hexdigest() for raw in (change.old, change.new))
    return {"path": str(change.target), "before": before, "after": after}


def _failure(failure: Failure) -> Json:
    return {
        "project": failure.project,
        "id": failure.id,
        "root": str(failure.root),
        "reason": failure.reason,
    }


def _explained(patch: Patch) -> Json:
    return {
        "project": patch.project,
        "id": patch.id,
        "title": patch.title,
        "default": patch.default,
        "why": patch.why,
        "symptom": patch.symptom,
        "requires": list(patch.requires),
        "references": list(patch.references),
        "retire_when": patch.retire_when,
        "places": places(patch),
    }
