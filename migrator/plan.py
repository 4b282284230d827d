"""What is to be done: the state of each patch on an install, and, from `changes`, new bytes for its files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from packaging.version import Version

from migrator.changes import Unplannable, changes, outdated, patched, where, without
from migrator.files import File, Files, Journal, before_cpfix, digest, files_of, find_in, holds_in
from migrator.match import Found
from migrator.model import AppliedPatch, Install, Patch, PatchState, Project, State
from migrator.ranges import edits_for, release, spelled

__all__ = [
    "File",
    "Files",
    "Journal",
    "Unplannable",
    "changes",
    "digest",
    "edits_for",
    "files_of",
    "inspect",
    "outdated",
    "patched",
    "release",
    "without",
]


def inspect(
    install: Install, project: Project, patches: Sequence[Patch], journal: Journal, files: Files
) -> list[PatchState]:
    """The state of each patch on one install. `patches` is the project's whole series."""
    old = outdated(install, patches, journal, files)
    return [_state(patch, install, project, journal, files, old) for patch in patches]


def _state(
    patch: Patch,
    install: Install,
    project: Project,
    journal: Journal,
    files: Files,
    old: Mapping[str, Collection[str]],
) -> PatchState:
    number = release(install.version)
    if number is None:
        why = f"version {install.version!r} cannot be read from {project.version_file}"
        return PatchState(patch, install, State.CONFLICT, why)
    applied = journal.knows(patch, install.root)
    replaces = applied is not None and any(patch.name in names for names in old.values())
    if old and (replaces or applied is None):
        files = _replaced(files, before_cpfix(files, journal), old)
    is_known = project.known.contains(number, prereleases=True)
    edits = edits_for(patch, install.version, files) if is_known else ()
    names = tuple(dict.fromkeys(e.file for e in edits))
    findings = [(e, find_in(e, files)) for e in edits]
    # an edit of ours that is there may be all that a probe sees
    fixed = None if any(f.found is Found.DONE for _, f in findings) else _probed(patch, number, files)

    def state(value: State, reason: str, *, in_doubt: bool = False) -> PatchState:
        return PatchState(patch, install, value, reason, names, in_doubt)

    if edits and all(f.found is Found.DONE for _, f in findings) and not replaces:
        return state(State.APPLIED, _how_applied(applied, [files(n) for n in names]))
    if fixed is not None:
        unknown = "" if is_known else f"{install.version} is not known to this cpfix; its probe says: "
        return state(State.FIXED_UPSTREAM, f"{unknown}{fixed} has upstream's own fix")
    if not edits:
        return _outside(patch, install, project, number, is_known, files)
    problems = [where(e, f.reason) for e, f in findings if f.found is Found.NEITHER]
    if applied and not problems:
        if replaces or applied.fingerprint != patch.fingerprint:
            why = f"cpfix {applied.cpfix} applied another version of this patch; apply replaces it"
            return state(State.NEEDED, why)
        why = "applied before, but the code is not there any more (reinstalled or edited)"
        return state(State.DRIFTED, why)
    if all(f.found is Found.TO_DO for _, f in findings):
        if not patch.default:
            why = f"optional, and possible here: cpfix apply --with {patch.name}"
            return state(State.NOT_APPLICABLE, why)
        return state(State.NEEDED, "the defect is there")
    done = [where(e, "already there") for e, f in findings if f.found is Found.DONE]
    if done:
        missing = problems or [where(e, "not there") for e, f in findings if f.found is Found.TO_DO]
        return state(State.PARTIAL, "; ".join([*missing, *done]))
    if not patch.default:
        return state(State.NOT_APPLICABLE, "optional, and not possible here: " + "; ".join(problems))
    return state(State.CONFLICT, "; ".join(problems))


def _replaced(files: Files, start: Files, paths: Collection[str]) -> Files:
    """The files as apply begins with them: without what another cpfix has written."""
    return lambda path: start(path) if path in paths else files(path)


def _outside(
    patch: Patch, install: Install, project: Project, number: Version, is_known: bool, files: Files
) -> PatchState:
    """No edit is meant for this version, and no probe found upstream's fix."""
    if is_known and files(patch.edits[0].file).raw is None:
        reason = f"the code that it repairs is not part of {install.version}"
        return PatchState(patch, install, State.NOT_APPLICABLE, reason)
    if not is_known:
        reason = f"{install.version} is not known to this cpfix (known: {project.known}); "
        reason += "its probes do not find upstream's fix" if patch.probes else "there is no probe for it"
        return PatchState(patch, install, State.NOT_APPLICABLE, reason, in_doubt=patch.default)
    expected = [p for p in patch.probes if p.versions.contains(number, prereleases=True)]
    if expected:
        reason = f"upstream's fix was expected in {install.version}, but {expected[0].file} does not have it"
        return PatchState(patch, install, State.NOT_APPLICABLE, reason, in_doubt=patch.default)
    reason = f"{install.version} is outside its range ({spelled(e.versions for e in patch.edits)})"
    return PatchState(patch, install, State.NOT_APPLICABLE, reason)


def _probed(patch: Patch, number: Version, files: Files) -> str | None:
    """The file in which a probe finds upstream's own fix."""
    for probe in patch.probes:
        if probe.versions.contains(number, prereleases=True) and holds_in(probe, files):
            return probe.file
    return None


def _how_applied(applied: AppliedPatch | None, files: Iterable[File]) -> str:
    if applied is None:
        return "the code is there, but not by this journal, so revert cannot take it back"
    changed = [file.path for file in files if not file.intact]
    if changed:
        return f"applied by cpfix {applied.cpfix}; {', '.join(changed)} changed since, so revert will refuse"
    return f"applied by cpfix {applied.cpfix}"
