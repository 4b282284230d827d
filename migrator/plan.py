"""What is to be done: the state of each patch on an install, the new bytes of each file. Writes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from migrator.match import Finding, Found, find, holds
from migrator.model import (
    AppliedPatch,
    Edit,
    FileChange,
    FileRecord,
    Install,
    Patch,
    PatchState,
    Project,
    State,
)
from migrator.names import undefined
from migrator.source import Module, Unreadable, parse


@dataclass(frozen=True)
class Journal:
    """What the ledger remembers, as far as planning needs it."""

    records: Mapping[tuple[Path, str], FileRecord]  # by import root and path below it
    original: Callable[[FileRecord], bytes]

    def knows(self, patch: Patch, root: Path) -> AppliedPatch | None:
        """The patch as it was applied below this root, if it was."""
        for (where, _), record in self.records.items():
            for applied in record.patches:
                if where == root and applied.name == patch.name:
                    return applied
        return None


@dataclass(frozen=True)
class File:
    """One file as it is on disk now."""

    path: str
    raw: bytes | None  # None where there is no such file
    module: Module | None
    problem: str = ""
    record: FileRecord | None = None

    @property
    def intact(self) -> bool:
        """It holds exactly what cpfix wrote."""
        return self.record is not None and self.raw is not None and digest(self.raw) == self.record.after


Files = Callable[[str], File]


def digest(raw: bytes) -> str:
    """sha256 in hexadecimal."""
    return hashlib.sha256(raw).hexdigest()


def files_of(root: Path, journal: Journal) -> Files:
    """A reader of the files below an import root that reads and parses each of them once."""
    read: dict[str, File] = {}

    def file(path: str) -> File:
        if path not in read:
            read[path] = _read(root, path, journal.records.get((root, path)))
        return read[path]

    return file


def _read(root: Path, path: str, record: FileRecord | None) -> File:
    try:
        raw = (root / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return File(path, None, None, f"there is no {path}", record)
    except OSError as error:
        return File(path, None, None, f"{path}: {error.strerror}", record)
    try:
        return File(path, raw, parse(raw), "", record)
    except Unreadable as error:
        return File(path, raw, None, f"{path}: {error}", record)


def release(version: str) -> Version | None:
    """The release number, which picks a variant: 0.16.0rc0.dev1 and 0.15.0+0d8e071 lose their tails."""
    try:
        return Version(Version(version).base_version)
    except InvalidVersion:
        return None


def edits_for(patch: Patch, version: str, files: Files | None = None) -> tuple[Edit, ...]:
    """The edits that make up a patch on one version; their order is that of the TOML file.

    Release candidates can differ in shape from the release whose number they bear. Where the edits in range
    have variants, `files` decide: the variant with the fewest edits that don't fit. Without `files`, all are
    meant.
    """
    number = release(version)
    edits = tuple(
        e for e in patch.edits if number is not None and e.versions.contains(number, prereleases=True)
    )
    variants = list(dict.fromkeys(e.variant for e in edits if e.variant))
    if not variants or files is None:
        return edits
    misfits = {
        v: sum(_find(e, files(e.file)).found is Found.NEITHER for e in edits if e.variant == v)
        for v in variants
    }
    best = min(variants, key=lambda v: misfits[v])
    return tuple(e for e in edits if e.variant in ("", best))


def inspect(
    install: Install, project: Project, patches: Sequence[Patch], journal: Journal, files: Files
) -> list[PatchState]:
    """The state of each patch on one install."""
    return [_state(patch, install, project, journal, files) for patch in patches]


def _state(patch: Patch, install: Install, project: Project, journal: Journal, files: Files) -> PatchState:
    number = release(install.version)
    if number is None:
        why = f"version {install.version!r} cannot be read from {project.version_file}"
        return PatchState(patch, install, State.CONFLICT, why)
    is_known = project.known.contains(number, prereleases=True)
    edits = edits_for(patch, install.version, files) if is_known else ()
    names = tuple(dict.fromkeys(e.file for e in edits))
    findings = [(e, _find(e, files(e.file))) for e in edits]
    # an edit of ours that is there may be all that a probe sees
    fixed = None if any(f.found is Found.DONE for _, f in findings) else _probed(patch, number, files)
    applied = journal.knows(patch, install.root)

    def state(value: State, reason: str, *, in_doubt: bool = False) -> PatchState:
        return PatchState(patch, install, value, reason, names, in_doubt)

    if edits and all(f.found is Found.DONE for _, f in findings):
        return state(State.APPLIED, _how_applied(applied, [files(n) for n in names]))
    if fixed is not None:
        unknown = "" if is_known else f"{install.version} is not known to this cpfix; its probe says: "
        return state(State.FIXED_UPSTREAM, f"{unknown}{fixed} has upstream's own fix")
    if not edits:
        return _outside(patch, install, project, number, is_known, files)
    problems = [_where(e, f.reason) for e, f in findings if f.found is Found.NEITHER]
    if applied and all(files(n).intact for n in names):
        return state(
            State.NEEDED, f"cpfix {applied.cpfix} applied another version of this patch; apply replaces it"
        )
    if applied and not problems:
        return state(
            State.DRIFTED, "applied before, but the code is not there any more (reinstalled or edited)"
        )
    if all(f.found is Found.TO_DO for _, f in findings):
        if not patch.default:
            return state(
                State.NOT_APPLICABLE, f"optional, and possible here: cpfix apply --with {patch.name}"
            )
        return state(State.NEEDED, "the defect is there")
    done = [_where(e, "already there") for e, f in findings if f.found is Found.DONE]
    if done:
        missing = problems or [_where(e, "not there") for e, f in findings if f.found is Found.TO_DO]
        return state(State.PARTIAL, "; ".join([*missing, *done]))
    if not patch.default:
        return state(State.NOT_APPLICABLE, "optional, and not possible here: " + "; ".join(problems))
    return state(State.CONFLICT, "; ".join(problems))


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
    ranges = " or ".join(dict.fromkeys(str(e.versions) for e in patch.edits))
    reason = f"{install.version} is outside its range ({ranges})"
    return PatchState(patch, install, State.NOT_APPLICABLE, reason)


def _find(edit: Edit, file: File) -> Finding:
    return find(edit, file.module) if file.module else Finding(Found.NEITHER, file.problem)


def _where(edit: Edit, reason: str) -> str:
    scope = (
        getattr(edit, "scope", "")
        or getattr(edit, "function", "")
        or getattr(edit, "before", "")
        or "the module"
    )
    return f"{edit.file}, {scope}: {reason}"


def _probed(patch: Patch, number: Version, files: Files) -> str | None:
    """The file in which a probe finds upstream's own fix."""
    for probe in patch.probes:
        if probe.versions.contains(number, prereleases=True):
            module = files(probe.file).module
            if module is not None and holds(probe, module):
                return probe.file
    return None


def _how_applied(applied: AppliedPatch | None, files: Iterable[File]) -> str:
    if applied is None:
        return "the code is there, but not by this journal, so revert cannot take it back"
    changed = [file.path for file in files if not file.intact]
    if changed:
        return f"applied by cpfix {applied.cpfix}; {', '.join(changed)} changed since, so revert will refuse"
    return f"applied by cpfix {applied.cpfix}"


class Unplannable(Exception):
    """A patch that matches cannot be written; the message says why."""


def changes(
    install: Install,
    patches: Sequence[Patch],
    states: Sequence[PatchState],
    journal: Journal,
    files: Files,
    cpfix: str,
) -> list[FileChange]:
    """New bytes for each file of one install so that the patches with work to do in `states` are applied and
    those the journal knows stay so. `patches` is the project's whole series. Raises `Unplannable`."""
    work = {s.patch.name for s in states if s.state.is_work}
    wanted = [p for p in patches if p.name in work or journal.knows(p, install.root)]
    start = _before_cpfix(files, journal)
    edits = {p.name: edits_for(p, install.version, start) for p in wanted}
    touched = [e.file for p in wanted if p.name in work for e in edits[p.name]]
    touched += _outdated(install, patches, journal, files)
    planned = [
        _change(files(path), install, wanted, edits, journal, cpfix) for path in dict.fromkeys(touched)
    ]
    return [change for change in planned if change.new != change.old]


def _before_cpfix(files: Files, journal: Journal) -> Files:
    """The files as they were before cpfix wrote them, where nobody else has written them since."""

    def file(path: str) -> File:
        now = files(path)
        if now.record is None or not now.intact:
            return now
        raw = journal.original(now.record)
        return replace(now, raw=raw, module=parse(raw))

    return file


def _outdated(install: Install, patches: Sequence[Patch], journal: Journal, files: Files) -> list[str]:
    """Files with a patch that this cpfix no longer has, or has in another form."""
    ours = {p.name: p.fingerprint for p in patches}
    return [
        path
        for (root, path), record in journal.records.items()
        if root == install.root
        and any(a.project == install.project and ours.get(a.name) != a.fingerprint for a in record.patches)
        and files(path).intact
    ]


def _change(
    file: File,
    install: Install,
    wanted: Sequence[Patch],
    edits: Mapping[str, Sequence[Edit]],
    journal: Journal,
    cpfix: str,
) -> FileChange:
    """Start from the original where cpfix wrote the file and nobody else did since: that is also how a newer
    cpfix replaces an older one's patches."""
    here = [(p, e) for p in wanted for e in edits[p.name] if e.file == file.path]
    if file.raw is None or file.module is None:
        raise Unplannable(file.problem)
    if file.intact and file.record is not None:
        base = journal.original(file.record)
    else:
        base = file.raw
        done = [p for p, e in here if find(e, file.module).found is Found.DONE]
        if done and file.record is not None:
            raise Unplannable(
                f"{file.path} was changed after cpfix patched it: take that change out or reinstall, "
                "then apply again"
            )
    names = dict.fromkeys(p for p, _ in here)
    return FileChange(
        root=install.root,
        path=file.path,
        old=file.raw,
        new=patched(base, [e for _, e in here], file.path),
        original=base,
        patches=tuple(AppliedPatch(p.project, p.id, p.fingerprint, cpfix) for p in names),
    )


def patched(base: bytes, edits: Sequence[Edit], path: str) -> bytes:
    """`base` with the edits that it lacks; the result is proven to compile and to read back as applied.
    Raises `Unplannable`."""
    from migrator.rewrite import CannotRewrite, rewrite  # libcst: half a second that `status` need not pay

    try:
        module = parse(base)
        new = rewrite(module, [e for e in edits if find(e, module).found is not Found.DONE])
        result = parse(new)
        compile(result.tree, path, "exec", dont_inherit=True)
        if missing := sorted(undefined(result) - undefined(module)):
            raise Unplannable(f"{path}: the new code uses `{missing[0]}`, which is not defined there")
    except (CannotRewrite, Unreadable, SyntaxError, ValueError) as error:
        raise Unplannable(f"{path}: {error}") from error
    for edit in edits:
        finding = find(edit, result)
        if finding.found is not Found.DONE:
            raise Unplannable(
                _where(edit, f"the edit does not read back as applied: {finding.reason or 'not there'}")
            )
    return new


def without(
    path: str, install: Install, patches: Sequence[Patch], taken: set[str], journal: Journal, files: Files
) -> FileChange:
    """The file with some of its patches taken back; with all of them, the original byte for byte.
    Raises `Unplannable`."""
    file = files(path)
    record = file.record
    if record is None or file.raw is None:
        raise Unplannable(file.problem or f"{file.path} is not in the journal")
    if not file.intact:
        raise Unplannable(f"{file.path} has changed since cpfix wrote it: revert would lose that change")
    original = journal.original(record)
    kept = [p for p in record.patches if p.name not in taken]
    if not kept:
        return FileChange(install.root, file.path, file.raw, original, original, ())
    known = {p.name: p for p in patches}
    if stale := [p.name for p in kept if p.name not in known or known[p.name].fingerprint != p.fingerprint]:
        raise Unplannable(f"{stale[0]} was applied by another cpfix: revert everything, or apply first")
    start = _before_cpfix(files, journal)
    edits = [e for p in kept for e in edits_for(known[p.name], install.version, start) if e.file == path]
    return FileChange(
        install.root, file.path, file.raw, patched(original, edits, file.path), original, tuple(kept)
    )
