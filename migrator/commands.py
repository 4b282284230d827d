"""What the commands do, from the installs that are found to the files that are written. Prints nothing."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from migrator import __version__, installs, ledger, plan, series
from migrator.model import (
    CannotApply,
    EnvironmentRefuses,
    FileChange,
    Install,
    Patch,
    PatchState,
    State,
    UsageError,
)
from migrator.plan import Files, Journal


@dataclass(frozen=True)
class Options:
    """What is looked at, and which of its patches are meant."""

    roots: tuple[Path, ...] = ()  # empty: what the interpreter imports
    python: str = ""  # another interpreter than the running one
    projects: tuple[str, ...] = ()  # empty: all
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # patches with `default = false` to be applied all the same


@dataclass(frozen=True)
class Scene:
    """All that is known before anything is written."""

    series: series.Series
    installs: tuple[Install, ...]  # every copy that was found
    targets: tuple[Install, ...]  # the copies that commands act on
    states: tuple[PatchState, ...]  # of every patch on every target
    journal: Journal
    files: dict[Path, Files]
    pending: tuple[str, ...]  # transactions that a killed command left behind

    @property
    def roots(self) -> tuple[Path, ...]:
        """The import roots of the targets."""
        return tuple(dict.fromkeys(install.root for install in self.targets))


@dataclass(frozen=True)
class Outcome:
    """What a command that writes did, or would do."""

    changes: tuple[FileChange, ...]
    states: tuple[PatchState, ...]  # afterwards
    failed: tuple[tuple[PatchState, str], ...] = ()  # nothing was written for these reasons
    messages: tuple[str, ...] = ()
    exit_code: int = 0


# --- looking


def look(options: Options) -> Scene:
    """Find the installs and the state of each patch on them. Raises `CpfixError`."""
    everything = series.load()
    for name in options.projects:
        _known(name, [p.name for p in everything.projects], "project")
    projects = [p for p in everything.projects if not options.projects or p.name in options.projects]
    path = installs.search_path_of(options.python) if options.python and not options.roots else None
    found = installs.find_installs(projects, options.roots, path)
    targets = tuple(i for i in found if options.roots or i.imports)
    roots = list(dict.fromkeys(i.root for i in targets))
    records = {(root, path): record for root in roots for path, record in ledger.records(root).items()}
    journal = Journal(records, lambda record: ledger.original(record.root, record))
    files = {root: plan.files_of(root, journal) for root in roots}
    wanted_too = named(options.optional, everything.patches)
    states = tuple(
        state
        for install in targets
        for state in plan.inspect(
            install,
            everything.project(install.project),
            [replace(p, default=True) if p.name in wanted_too else p for p in everything.of(install.project)],
            journal,
            files[install.root],
        )
    )
    return Scene(everything, tuple(found), targets, states, journal, files, tuple(ledger.pending(roots)))


def require_targets(scene: Scene, options: Options) -> None:
    """Raise `EnvironmentRefuses` where there is nothing to act on."""
    if scene.targets:
        return
    where = ", ".join(map(str, options.roots)) or options.python or f"the path of {sys.executable}"
    names = options.projects or [p.name for p in scene.series.projects]
    hidden = [f"\n  {i.project} in {i.root}: {'; '.join(i.notes)}" for i in scene.installs]
    raise EnvironmentRefuses(
        f"no {' or '.join(names)} found that could be imported from {where}{''.join(hidden)}\n"
        "Name the folder with --root DIR (a site-packages folder or a checkout), or the interpreter with "
        "--python EXE."
    )


def named(names: Iterable[str], patches: Sequence[Patch]) -> set[str]:
    """The patches of those names: `id` in every project, `project/id` in one. Raises `UsageError`."""
    found: set[str] = set()
    for name in names:
        _known(name, [n for p in patches for n in (p.name, p.id)], "patch")
        found |= {p.name for p in patches if name in (p.name, p.id)}
    return found


def _known(name: str, names: Iterable[str], what: str) -> None:
    names = list(dict.fromkeys(names))
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise UsageError(f"no {what} is called {name!r}; {hint}")


def selected(scene: Scene, options: Options) -> tuple[PatchState, ...]:
    """The states that --only and --skip leave. Raises `UsageError`."""
    patches = scene.series.patches
    only, skip = named(options.only, patches), named(options.skip, patches)
    return tuple(s for s in scene.states if (not only or s.patch.name in only) and s.patch.name not in skip)


# --- applying


def propose(scene: Scene, options: Options) -> Outcome:
    """The changes that `apply` would make, or why it can't. Nothing is written. Raises `CpfixError`."""
    require_targets(scene, options)
    chosen = selected(scene, options)
    failed = [(s, s.reason) for s in chosen if s.state.is_error or s.in_doubt]
    messages = list(_check_requirements(scene, chosen, failed))
    changes: list[FileChange] = []
    for install in scene.targets:
        mine = [s for s in chosen if s.install is install]
        ours = scene.series.of(install.project)
        try:
            changes += plan.changes(
                install, ours, mine, scene.journal, scene.files[install.root], __version__
            )
        except plan.Unplannable as error:
            failed += [(s, str(error)) for s in mine if s.state.is_work]
    if failed:
        return Outcome((), scene.states, tuple(failed), tuple(messages), CannotApply.exit_code)
    return Outcome(tuple(changes), scene.states, (), tuple(messages))


def _check_requirements(
    scene: Scene, chosen: Sequence[PatchState], failed: list[tuple[PatchState, str]]
) -> Iterable[str]:
    """Add to `failed` what lacks a patch that it requires; yield what could not be looked at."""
    for state in chosen:
        if not state.state.is_work:
            continue
        for name in series.requirements(state.patch):
            there = [s for s in scene.states if s.patch.name == name]
            if not there:
                yield f"{state.patch.name} requires {name}, whose project was not found: apply it there too"
            for other in there:
                if other.state.is_work and other not in chosen:
                    failed.append(
                        (state, f"it is wrong without {name}: apply that too (--only {name}, or no --skip)")
                    )
                elif other.state.is_error and other not in chosen:
                    failed.append(
                        (
                            state,
                            f"it is wrong without {name}, which is in {other.state.value}: {other.reason}",
                        )
                    )


def apply(options: Options, *, verify: str = "static", keep: bool = False, timeout: float = 600.0) -> Outcome:
    """Apply the chosen patches to every target, or none. Raises `CpfixError`; then nothing was written."""
    scene = look(options)
    outcome = propose(scene, options)
    # before any lock: an image that is patched already may be read-only
    if outcome.exit_code or (not outcome.changes and not scene.pending):
        return outcome
    with ledger.locked(scene.roots, timeout):
        recovered = tuple(ledger.recover(scene.roots))
        scene = look(options)
        outcome = propose(scene, options)
        messages = recovered + outcome.messages
        if outcome.exit_code or not outcome.changes:
            return replace(outcome, messages=messages)
        messages += tuple(ledger.commit(outcome.changes, "apply", __version__))
        after = look(options)
        wrong = _read_back(outcome, after, options) if verify != "none" else []
        if wrong and not keep:
            ledger.commit(
                [_undone(c, scene.journal) for c in outcome.changes], "apply, taken back", __version__
            )
            messages += ("everything was taken back",)
            return Outcome((), look(options).states, tuple(wrong), messages, 1)
        return Outcome(outcome.changes, after.states, tuple(wrong), messages, 1 if wrong else 0)


def _read_back(outcome: Outcome, after: Scene, options: Options) -> list[tuple[PatchState, str]]:
    """The static verification: each patch that had work to do reads back as applied from disk."""
    planned = {(s.patch.name, s.install.root) for s in outcome.states if s.state.is_work}
    return [
        (s, f"after writing, it reads back as {s.state.value}: {s.reason}")
        for s in selected(after, options)
        if (s.patch.name, s.install.root) in planned and s.state is not State.APPLIED
    ]


def _undone(change: FileChange, before: Journal) -> FileChange:
    """The change that takes one back, to what the journal knew before."""
    record = before.records.get((change.root, change.path))
    return replace(change, old=change.new, new=change.old, patches=record.patches if record else ())


# --- taking back


def revert(options: Options, *, dry_run: bool = False, timeout: float = 600.0) -> Outcome:
    """Take back what the journal knows of the targets, byte for byte; with --only and --skip, some patches
    of it. Raises `CpfixError`; then nothing was written."""
    scene = look(options)
    require_targets(scene, options)
    outcome = _propose_revert(scene, options)
    if dry_run or outcome.exit_code or (not outcome.changes and not scene.pending):
        return outcome
    with ledger.locked(scene.roots, timeout):
        recovered = tuple(ledger.recover(scene.roots))
        outcome = _propose_revert(look(options), options)
        if outcome.exit_code or not outcome.changes:
            return replace(outcome, messages=recovered + outcome.messages)
        messages = tuple(ledger.commit(outcome.changes, "revert", __version__))
        return Outcome(outcome.changes, look(options).states, (), recovered + messages)


def _propose_revert(scene: Scene, options: Options) -> Outcome:
    chosen = selected(scene, options)
    taken = {(s.patch.name, s.install.root) for s in chosen}
    changes: list[FileChange] = []
    failed: list[tuple[PatchState, str]] = []
    for (root, path), record in scene.journal.records.items():
        whose = {a.project for a in record.patches}
        install = next((i for i in scene.targets if i.root == root and i.project in whose), None)
        if install is None:
            continue
        names = {a.name for a in record.patches}
        if options.only or options.skip:
            names &= {name for name, where in taken if where == root}
        if not names:
            continue
        try:
            ours = scene.series.of(install.project)
            changes.append(plan.without(path, install, ours, names, scene.journal, scene.files[root]))
        except plan.Unplannable as error:
            failed += [(s, str(error)) for s in chosen if s.patch.name in names and s.install is install]
    known = {a.name for record in scene.journal.records.values() for a in record.patches}
    failed += [
        (s, s.reason)
        for s in chosen
        if s.state is State.APPLIED and s.patch.name not in known and not options.only
    ]
    if failed:
        return Outcome((), scene.states, tuple(failed), (), CannotApply.exit_code)
    return Outcome(tuple(changes), scene.states)
