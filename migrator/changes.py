"""The new bytes of each file. Writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from migrator.files import File, Files, Journal, before_cpfix, digest, find_in
from migrator.match import Found, find
from migrator.model import AppliedPatch, Edit, FileChange, FileRecord, Install, Patch, PatchState
from migrator.names import undefined
from migrator.ranges import edits_for
from migrator.source import Unreadable, skim, without_warnings


class Unplannable(Exception):
    """A patch that matches cannot be written. The message says why; `reasons` is each reason's patches."""

    def __init__(self, message: str, reasons: Mapping[str, Collection[str]] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}


def patched(base: bytes, edits: Sequence[Edit], path: str) -> bytes:
    """`base` with the edits that it lacks; the result is proven to compile and to read back as applied.
    Raises `Unplannable`."""
    return _patched(base, tuple(edits), path)


@lru_cache(maxsize=256)  # apply plans twice, before it has the lock and under it
def _patched(base: bytes, edits: tuple[Edit, ...], path: str) -> bytes:
    from migrator.rewrite import CannotRewrite, rewrite  # libcst: half a second that `status` need not pay

    try:
        module = skim(base)
        new = rewrite(module, [e for e in edits if find(e, module).found is not Found.DONE])
        result = skim(new)
        with without_warnings():
            compile(result.text, path, "exec", dont_inherit=True)
        if (unknown := undefined(result)) and (missing := sorted(unknown - undefined(module))):
            raise Unplannable(f"{path}: the new code uses `{missing[0]}`, which is not defined there")
    except (CannotRewrite, Unreadable, SyntaxError, ValueError) as error:
        raise Unplannable(f"{path}: {error}") from error
    for edit in edits:
        finding = find(edit, result)
        if finding.found is not Found.DONE:
            why = f"the edit does not read back as applied: {finding.reason or 'not there'}"
            raise Unplannable(where(edit, why))
    return new


def where(edit: Edit, reason: str) -> str:
    """File and scope of an edit in front of a reason."""
    scope = (
        getattr(edit, "scope", "")
        or getattr(edit, "function", "")
        or getattr(edit, "before", "")
        or "the module"
    )
    return f"{edit.file}, {scope}: {reason}"


# --- what another cpfix has written


def outdated(
    install: Install, patches: Sequence[Patch], journal: Journal, files: Files
) -> dict[str, frozenset[str]]:
    """Files that cpfix wrote and nobody else did since, and that this series would write otherwise: by path,
    the names of the patches in it that are not this series'."""
    ours = {p.name: p.fingerprint for p in patches}
    found: dict[str, frozenset[str]] = {}
    for (root, path), record in journal.records.items():
        if root != install.root or not any(a.project == install.project for a in record.patches):
            continue
        others = frozenset(a.name for a in record.patches if ours.get(a.name) != a.fingerprint)
        if others and files(path).intact and not _comes_out_the_same(path, install, patches, journal, files):
            found[path] = others
    return found


def _comes_out_the_same(
    path: str, install: Install, patches: Sequence[Patch], journal: Journal, files: Files
) -> bool:
    file = files(path)
    assert file.record is not None
    edits = _edits_of(file.record, install, patches, before_cpfix(files, journal))
    if len(edits) < len(file.record.patches):
        return False
    try:
        new = patched(journal.original(file.record), [e for es in edits.values() for e in es], path)
    except Unplannable:
        return False
    return new == file.raw


def _edits_of(
    record: FileRecord, install: Install, patches: Sequence[Patch], start: Files
) -> dict[str, list[Edit]]:
    """By name, what those of this series' patches that a record names do to its file."""
    named = {a.name for a in record.patches}
    edits = {
        p.name: [e for e in edits_for(p, install.version, start) if e.file == record.path]
        for p in patches
        if p.name in named
    }
    return {name: found for name, found in edits.items() if found}


# --- applying


def changes(
    install: Install,
    patches: Sequence[Patch],
    states: Sequence[PatchState],
    journal: Journal,
    files: Files,
    cpfix: str,
) -> list[FileChange]:
    """New bytes for each file of one install so that the patches with work to do in `states` are applied and
    those that cpfix has written there stay. `patches` is the project's whole series. Raises `Unplannable`."""
    work = {s.patch.name for s in states if s.state.is_work}
    start = before_cpfix(files, journal)
    edits = {p.name: edits_for(p, install.version, start) for p in patches}
    old = outdated(install, patches, journal, files)
    touched = [e.file for p in patches if p.name in work for e in edits[p.name]]
    touched += [path for path, names in old.items() if not _held(path, names, work, edits)]
    planned: list[FileChange] = []
    reasons: dict[str, Collection[str]] = {}
    for path in dict.fromkeys(touched):
        here = [(p, e) for p in patches for e in edits[p.name] if e.file == path]
        if held := _held(path, old.get(path, ()), work, edits):
            change: FileChange | str = f"{path}: another cpfix has applied {held} there: apply that too"
        else:
            change = _change(files(path), here, work, install.root, journal, cpfix)
        if isinstance(change, FileChange):
            planned.append(change)
        else:
            reasons[change] = {p.name for p, _ in here if p.name in work} | set(old.get(path, ()))
    if reasons:
        raise Unplannable("; ".join(reasons), reasons)
    return [change for change in planned if change.new != change.old or _renamed(change, journal)]


def _renamed(change: FileChange, journal: Journal) -> bool:
    """The bytes are there, but the journal has them under the names of other patches."""
    record = journal.records.get((change.root, change.path))
    return record is not None and {a.name for a in record.patches} != {a.name for a in change.patches}


def _held(
    path: str, names: Collection[str], work: Collection[str], edits: Mapping[str, Sequence[Edit]]
) -> str:
    """One of the patches that another cpfix has written into a file, and that is not to be replaced."""
    left = (n for n in names if n not in work and any(e.file == path for e in edits.get(n, ())))
    return next(left, "")


def _change(
    file: File,
    here: Sequence[tuple[Patch, Edit]],
    work: Collection[str],
    root: Path,
    journal: Journal,
    cpfix: str,
) -> FileChange | str:
    """The change of a file, or why there can be none.

    It starts from the original where cpfix wrote the file and nobody else did since: that is also how a newer
    cpfix replaces an older one's patches.
    """
    if file.raw is None or file.module is None:
        return file.problem
    recorded = {a.name for a in file.record.patches} if file.record else set()
    if file.intact and file.record is not None:
        base = journal.original(file.record)
        here = [(p, e) for p, e in here if p.name in work or p.name in recorded]
    else:
        base = file.raw
        module = file.module
        if any(p.name in recorded and find(e, module).found is Found.DONE for p, e in here):
            return (
                f"{file.path} was changed after cpfix patched it: take that change out or reinstall, "
                "then apply again"
            )
        here = [(p, e) for p, e in here if p.name in work]
    try:
        new = patched(base, [e for _, e in here], file.path)
    except Unplannable as error:
        return str(error)
    patches = dict.fromkeys(p for p, _ in here)
    applied = tuple(AppliedPatch(p.project, p.id, p.fingerprint, cpfix) for p in patches)
    return FileChange(root, file.path, file.raw, new, base, applied)


# --- taking back


def without(
    path: str, install: Install, patches: Sequence[Patch], taken: set[str], journal: Journal, files: Files
) -> FileChange:
    """The file with some of its patches taken back; with all of them, the original byte for byte. A file that
    has none of them any more is only forgotten. Raises `Unplannable`."""
    file = files(path)
    record = file.record
    if record is None or file.raw is None:
        raise Unplannable(file.problem or f"{file.path} is not in the journal")
    if not file.intact:
        if _is_gone(record, file.raw, patches, files):
            return FileChange(install.root, path, file.raw, file.raw, file.raw, ())
        raise Unplannable(f"{path} has changed since cpfix wrote it: revert would lose that change")
    original = journal.original(record)
    kept = [a for a in record.patches if a.name not in taken]
    if not kept:
        return FileChange(install.root, path, file.raw, original, original, ())
    if path in outdated(install, patches, journal, files):
        raise Unplannable(f"{path} was patched by another cpfix: revert everything, or apply first")
    edits = _edits_of(record, install, patches, before_cpfix(files, journal))
    new = patched(original, [e for a in kept for e in edits[a.name]], path)
    return FileChange(install.root, path, file.raw, new, original, tuple(kept))


def _is_gone(record: FileRecord, raw: bytes, patches: Sequence[Patch], files: Files) -> bool:
    """Somebody has reinstalled the file, maybe from another release, or taken the patches out by hand."""
    if digest(raw) == record.before:
        return True
    named = {a.name for a in record.patches}
    known = [p for p in patches if p.name in named]
    edits = [e for p in known for e in p.edits if e.file == record.path]
    return len(known) == len(named) and not any(find_in(e, files).found is Found.DONE for e in edits)
