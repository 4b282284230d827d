"""All that is known before anything is written: the installs that are found, and the state of each patch."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from migrator import installs, ledger, plan, series
from migrator.model import CannotApply, EnvironmentRefuses, FileRecord, Install, Patch, PatchState, UsageError
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
    """The installs, their patches and their journals at one moment."""

    series: series.Series
    installs: tuple[Install, ...]  # every copy that was found
    targets: tuple[Install, ...]  # the copies that commands act on
    states: tuple[PatchState, ...]  # of every patch on every target
    beside: tuple[PatchState, ...]  # of the projects that `--project` leaves out: patches may require theirs
    journal: Journal
    files: dict[Path, Files]
    pending: tuple[str, ...]  # transactions that a killed command left behind
    busy: tuple[str, ...]  # locks that other processes hold: what is read here may be half of their work
    outdated: tuple[Path, ...]  # files with patches of another cpfix, which apply replaces

    @property
    def roots(self) -> tuple[Path, ...]:
        """The import roots of the targets."""
        return tuple(dict.fromkeys(install.root for install in self.targets))


Records = Mapping[tuple[Path, str], FileRecord]


def look(options: Options) -> Scene:
    """Find the installs and the state of each patch on them. Raises `CpfixError`."""
    refused = ""
    while True:
        try:
            scene = _look(options)
        except CannotApply as problem:
            if str(problem) == refused:
                raise
            refused = str(problem)  # an original may have gone because another process takes patches back
            continue
        if scene.busy or _was_still(scene):
            return scene


def _was_still(scene: Scene) -> bool:
    """Whether no transaction ended in between: that would make one half of a scene old and the other new."""
    roots = list(scene.files)
    return scene.journal.records == _records(roots) and scene.pending == tuple(ledger.pending(roots))


def look_when_settled(options: Options, timeout: float = 600.0) -> Scene:
    """`look`, once no other process is at work. Raises `CpfixError`."""
    deadline = time.monotonic() + timeout
    while (scene := look(options)).busy:
        if time.monotonic() > deadline:
            raise EnvironmentRefuses(" ".join(scene.busy))
        time.sleep(0.1)
    return scene


def _look(options: Options) -> Scene:
    everything = series.shipped()
    for name in options.projects:
        check_known(name, [p.name for p in everything.projects], "project")
    path = installs.search_path_of(options.python) if options.python and not options.roots else None
    found = installs.find_installs(everything.projects, options.roots, path)
    acted_on = [i for i in found if options.roots or i.imports]
    roots = list(dict.fromkeys(i.root for i in acted_on))
    journal = Journal(_records(roots), lambda record: ledger.original(record.root, record))
    files = {root: plan.files_of(root, journal) for root in roots}
    optional = named(options.optional, everything.patches)
    states = {
        install: plan.inspect(
            install,
            everything.project(install.project),
            [replace(p, default=p.default or p.name in optional) for p in everything.of(install.project)],
            journal,
            files[install.root],
        )
        for install in acted_on
    }
    meant = set(options.projects or (p.name for p in everything.projects))
    targets = tuple(i for i in acted_on if i.project in meant)
    return Scene(
        series=everything,
        installs=tuple(i for i in found if i.project in meant),
        targets=targets,
        states=tuple(s for i in targets for s in states[i]),
        beside=tuple(s for i in acted_on if i.project not in meant for s in states[i]),
        journal=journal,
        files=files,
        pending=tuple(ledger.pending(roots)),
        busy=tuple(ledger.at_work(roots)),
        outdated=tuple(
            i.root / path
            for i in targets
            for path in plan.outdated(i, everything.of(i.project), journal, files[i.root])
        ),
    )


def _records(roots: Iterable[Path]) -> Records:
    return {(root, path): record for root in roots for path, record in ledger.records(root).items()}


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


def selected(scene: Scene, options: Options) -> tuple[PatchState, ...]:
    """The states that --only and --skip leave. Raises `UsageError`."""
    patches = scene.series.patches
    only, skip = named(options.only, patches), named(options.skip, patches)
    return tuple(s for s in scene.states if (not only or s.patch.name in only) and s.patch.name not in skip)


def named(names: Iterable[str], patches: Sequence[Patch]) -> set[str]:
    """The patches of those names; an `id` is meant in every project that has it. Raises `UsageError`."""
    found: set[str] = set()
    for name in names:
        check_known(name, [n for p in patches for n in (p.name, p.id)], "patch")
        found |= {p.name for p in patches if name in (p.name, p.id)}
    return found


def check_known(name: str, names: Iterable[str], what: str) -> None:
    """Raise `UsageError` where there is no such name."""
    names = list(dict.fromkeys(names))
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise UsageError(f"no {what} is called {name!r}; {hint}")
