"""What the commands do with what `scene` has found. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from migrator import __version__, ledger, plan, series
from migrator.model import CannotApply, CpfixError, FileChange, Install, PatchState, State
from migrator.plan import Journal
from migrator.scene import Options, Scene, look, look_when_settled, require_targets, selected

if TYPE_CHECKING:
    from migrator.verify.check import Report


@dataclass(frozen=True)
class Failure:
    """A patch that cannot be applied or taken back, and why."""

    project: str
    id: str
    version: str  # of the install
    root: Path  # import root
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What a command that writes did, or would do."""

    changes: tuple[FileChange, ...]
    states: tuple[PatchState, ...]  # afterwards
    failed: tuple[Failure, ...] = ()  # nothing was written for these reasons
    messages: tuple[str, ...] = ()
    exit_code: int = 0
    proof: Report | None = None  # of the verification that followed

    @property
    def written(self) -> tuple[FileChange, ...]:
        """The changes of files; for the others only the journal is put in order."""
        return tuple(change for change in self.changes if change.new != change.old)


def _failure(state: PatchState, reason: str) -> Failure:
    return Failure(state.patch.project, state.patch.id, state.install.version, state.install.root, reason)


def _failures(install: Install, names: Iterable[str], reason: str) -> list[Failure]:
    """The same for patches that this series may not have any more."""
    split = (name.split("/", 1) for name in sorted(names))
    return [Failure(project, id, install.version, install.root, reason) for project, id in split]


Propose = Callable[[Scene, Options], Outcome]


def _rehearsed(propose: Propose, options: Options) -> Outcome:
    """What a command would do now. Raises `CpfixError`."""
    scene = look_when_settled(options)
    if scene.pending:
        raise CannotApply(" ".join(scene.pending))
    try:
        return propose(scene, options)
    except CannotApply:  # a process that takes patches back may have taken an original along
        return propose(look_when_settled(options), options)


def _without_a_lock(propose: Propose, scene: Scene, options: Options) -> Outcome | None:
    """What comes out where nothing is to be written: an image that is patched already may be read-only. None
    where that takes a lock. Raises `CpfixError`.
    """
    require_targets(scene, options)
    if scene.pending or scene.busy:
        return None
    try:
        outcome = propose(scene, options)
    except CannotApply:  # as above
        return None
    return outcome if outcome.exit_code or not outcome.changes else None


# --- applying


def propose(scene: Scene, options: Options) -> Outcome:
    """The changes that `apply` would make, or why it can't. Nothing is written. Raises `CpfixError`."""
    require_targets(scene, options)
    chosen = selected(scene, options)
    failed = [_failure(s, s.reason) for s in chosen if s.state.is_error or s.in_doubt]
    failed += _lacking(scene, chosen)
    changes: list[FileChange] = []
    for install in scene.targets:
        mine = [s for s in chosen if s.install is install]
        ours = scene.series.of(install.project)
        try:
            changes += plan.changes(
                install, ours, mine, scene.journal, scene.files[install.root], __version__
            )
        except plan.Unplannable as error:
            for reason, names in error.reasons.items():
                failed += _failures(install, names, reason)
    messages = tuple(_not_looked_at(scene, chosen))
    if failed:
        return Outcome((), scene.states, tuple(failed), messages, CannotApply.exit_code)
    return Outcome(tuple(changes), scene.states, (), messages)


def _lacking(scene: Scene, chosen: Sequence[PatchState]) -> Iterator[Failure]:
    """Patches to be applied without one that they require."""
    for state in chosen:
        for name in series.requirements(state.patch) if state.state.is_work else ():
            for other in (s for s in (*scene.states, *scene.beside) if s.patch.name == name):
                if other in chosen:
                    continue
                if other.state.is_work:
                    yield _failure(state, f"it is wrong without {name}: apply that too")
                elif other.state.is_error:
                    why = f"it is wrong without {name}, which is in {other.state.value}: {other.reason}"
                    yield _failure(state, why)


def _not_looked_at(scene: Scene, chosen: Sequence[PatchState]) -> Iterator[str]:
    found = {s.patch.name for s in (*scene.states, *scene.beside)}
    for state in chosen:
        for name in series.requirements(state.patch) if state.state.is_work else ():
            if name not in found:
                yield f"{state.patch.name} requires {name}, whose project was not found: apply it there too"


def rehearse(options: Options) -> Outcome:
    """What `apply` would do now. Raises `CpfixError`."""
    return _rehearsed(propose, options)


def apply(options: Options, *, verify: str = "none", keep: bool = False, timeout: float = 1800.0) -> Outcome:
    """Apply the chosen patches to every target, or none. Raises `CpfixError`; then nothing was written.

    What was written is read back from disk, and verified at the level `verify`: "none" for no more than that.
    """
    scene = look(options)
    if (outcome := _without_a_lock(propose, scene, options)) is not None:
        return outcome
    with ledger.locked(scene.roots, timeout):
        recovered = tuple(ledger.recover(scene.roots))
        scene = look(options)
        outcome = propose(scene, options)
        messages = recovered + outcome.messages
        if outcome.exit_code or not outcome.changes:
            return replace(outcome, messages=messages)
        messages += tuple(ledger.commit(outcome.changes, "apply", __version__))
        undone = [_undone(change, scene.journal) for change in outcome.changes]
        try:
            verified = _verified(scene, outcome.changes, options, verify)
        except BaseException:  # interrupted: nobody knows whether it is right
            if not keep:
                ledger.commit(undone, "apply, taken back", __version__)
            raise
        messages += verified.messages
        if verified.exit_code and not keep:
            try:
                messages += tuple(ledger.commit(undone, "apply, taken back", __version__))
            except CpfixError as error:
                messages += (f"It could not be taken back. {error}",)
            else:
                messages += ("Everything was taken back.",)
                return replace(verified, changes=(), states=look(options).states, messages=messages)
        return replace(verified, messages=messages)


def _verified(before: Scene, changes: tuple[FileChange, ...], options: Options, level: str) -> Outcome:
    """The changes that were written, and whether they do what they are meant to."""
    after = look(options)
    failed = tuple(_read_back(before, after, options))
    if failed or level == "none":
        return Outcome(changes, after.states, failed, exit_code=1 if failed else 0)
    from migrator.proof import Request, prove  # not needed for less

    left = [
        s.patch.name
        for s in (*after.states, *after.beside)
        if s.state.is_work or s.state.is_error or s.in_doubt
    ]
    messages: tuple[str, ...] = ()
    if left and level == "auto":
        level = "static"
        messages = (f"The stack cannot train right without {', '.join(left)}: only its files were verified.",)
    found = prove(after, options, Request(level))
    return Outcome(changes, after.states, (), messages, found.exit_code, found)


def _read_back(before: Scene, after: Scene, options: Options) -> Iterator[Failure]:
    """Patches that had work to do and don't read back as applied from disk."""
    planned = {(s.patch.name, s.install.root) for s in before.states if s.state.is_work}
    for s in selected(after, options):
        if (s.patch.name, s.install.root) in planned and s.state is not State.APPLIED:
            yield _failure(s, f"after writing, it reads back as {s.state.value}: {s.reason}")


def _undone(change: FileChange, before: Journal) -> FileChange:
    """The change that takes one back, to what the journal knew before."""
    record = before.records.get((change.root, change.path))
    if record is None or record.after != plan.digest(change.old):  # drifted: that record was of no more use
        return replace(change, old=change.new, new=change.old, original=change.old, patches=())
    return replace(change, old=change.new, new=change.old, patches=record.patches)


# --- taking back


def revert(options: Options, *, dry_run: bool = False, timeout: float = 600.0) -> Outcome:
    """Take back what the journal knows of the targets, byte for byte; with --only and --skip, some patches
    of it. Raises `CpfixError`; then nothing was written."""
    if dry_run:
        return _rehearsed(_propose_revert, options)
    scene = look(options)
    if (outcome := _without_a_lock(_propose_revert, scene, options)) is not None:
        return outcome
    with ledger.locked(scene.roots, timeout):
        recovered = tuple(ledger.recover(scene.roots))
        outcome = _propose_revert(look(options), options)
        if outcome.exit_code or not outcome.changes:
            return replace(outcome, messages=recovered + outcome.messages)
        messages = tuple(ledger.commit(outcome.changes, "revert", __version__))
        return Outcome(outcome.changes, look(options).states, (), recovered + messages)


def _propose_revert(scene: Scene, options: Options) -> Outcome:
    require_targets(scene, options)
    chosen = selected(scene, options)
    meant = {s.patch.name for s in chosen} if options.only or options.skip else None
    records = [
        (install, path, record)
        for (root, path), record in scene.journal.records.items()
        for install in scene.targets
        if install.root == root and any(a.project == install.project for a in record.patches)
    ]
    taken = {
        (a.name, install.root)
        for install, _, record in records
        for a in record.patches
        if meant is None or a.name in meant
    }
    failed = [*_not_ours(chosen, taken), *_left_lacking(scene, taken)]
    changes: list[FileChange] = []
    for install, path, record in records:
        names = {a.name for a in record.patches if (a.name, install.root) in taken}
        if names:
            ours, files = scene.series.of(install.project), scene.files[install.root]
            try:
                changes.append(plan.without(path, install, ours, names, scene.journal, files))
            except plan.Unplannable as error:
                failed += _failures(install, names, str(error))
    if failed:
        return Outcome((), scene.states, tuple(failed), (), CannotApply.exit_code)
    return Outcome(tuple(changes), scene.states)


def _not_ours(chosen: Sequence[PatchState], taken: set[tuple[str, Path]]) -> Iterator[Failure]:
    """Patches that are there, but that the journal does not know."""
    for s in chosen:
        if s.state is State.APPLIED and (s.patch.name, s.install.root) not in taken:
            yield _failure(s, s.reason)


def _left_lacking(scene: Scene, taken: set[tuple[str, Path]]) -> Iterator[Failure]:
    """Patches that would stay without one that they require."""
    for s in (*scene.states, *scene.beside):
        if s.state is State.APPLIED and (s.patch.name, s.install.root) not in taken:
            for name in series.requirements(s.patch):
                if any(
                    n == name and (r == s.install.root or name.split("/")[0] != s.patch.project)
                    for n, r in taken
                ):
                    yield _failure(s, f"it is wrong without {name}: take that back too")
