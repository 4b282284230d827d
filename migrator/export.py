"""Branches and commits for upstream's repository, with what `apply` would write there, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrator import __version__, plan, pull_request, series, upstream_git
from migrator.model import (
    CannotApply,
    EnvironmentRefuses,
    Git,
    Install,
    Patch,
    PatchState,
    Project,
    State,
    UsageError,
)
from migrator.plan import File, Files, Journal
from migrator.scene import named
from migrator.source import Unreadable, parse
from migrator.upstream_git import Entry
from migrator.version_file import read_version

if TYPE_CHECKING:
    from git import Repo

# What `apply --only` these patches would write, by path below the import root. Raises `CannotApply`.
Contents = Callable[[frozenset[str]], Mapping[str, bytes]]

_NO_JOURNAL = Journal({}, lambda record: b"")
_FOLDERS = ("", "src/")  # where a repository may keep its packages


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    repo: Path
    project: str = ""  # "": the one whose layout the repository has
    base: str = ""  # "": HEAD, and its work tree has to be clean
    branch: str = ""  # "": a branch a patch
    only: tuple[str, ...] = ()
    signoff: bool = False
    format_patch: Path | None = None
    evidence: Path | None = None


@dataclass(frozen=True)
class Commit:
    """A patch as a commit on top of those before it."""

    patch: Patch
    message: str
    entries: tuple[Entry, ...]  # files that differ from the commit before
    tests: tuple[Entry, ...]  # new files in upstream's test folder

    @property
    def files(self) -> tuple[Entry, ...]:
        """All that the commit changes or adds."""
        return self.entries + self.tests


@dataclass(frozen=True)
class Branch:
    """A branch to be made; all commits but the last are there for the last in a branch for one patch."""

    name: str
    commits: tuple[Commit, ...]
    own: tuple[Commit, ...]  # what its pull request is about
    longest_line: int  # of the lines that `own` adds
    tip: str = ""  # full hash, once it is made
    folder: Path | None = None  # with its patch files and PULL_REQUEST.md


@dataclass(frozen=True)
class Export:
    """What `export` does, or did."""

    top: Path
    project: Project
    base: str  # as it was named
    commit: str  # its full hash
    version: str
    states: tuple[PatchState, ...]  # at the base, of the patches that were asked for
    branches: tuple[Branch, ...]
    written: bool = False


@dataclass(frozen=True)
class _Base:
    """The project at the base commit."""

    repo: Repo
    project: Project
    folder: str  # of its packages, "" or "src/"
    install: Install
    patches: tuple[Patch, ...]
    states: tuple[PatchState, ...]
    files: Files
    contents: Contents
    commit: str
    name: str


def run(request: Request, *, dry_run: bool = False) -> Export:
    """Make the branches, and the files of `--format-patch`. Where it raises `CpfixError`, none is made."""
    repo = upstream_git.opened(request.repo)
    checks = pull_request.evidence_of(request.evidence)
    base = _look(repo, request)
    signature = upstream_git.committer(repo) if request.signoff or not dry_run else ""
    branches = _branches(base, request, signature if request.signoff else "")
    upstream_git.check_free(repo, [b.name for b in branches])
    branches = [replace(b, folder=_folder(request.format_patch, b.name)) for b in branches]
    asked = _asked(base, request)
    result = Export(
        upstream_git.top_of(repo),
        base.project,
        base.name,
        base.commit,
        base.install.version,
        tuple(s for s in base.states if s.patch in asked),
        tuple(branches),
    )
    if dry_run or not branches:
        return result
    made = _write(repo, base.commit, branches)
    for branch in made:
        if branch.folder is not None:
            branch.folder.mkdir(parents=True, exist_ok=True)
            upstream_git.format_patch(repo, base.commit, branch.tip, branch.folder)
            facts = _facts(base, branch, request.signoff)
            text = pull_request.document(facts, base.project.contribution, checks)
            (branch.folder / "PULL_REQUEST.md").write_text(text, encoding="utf-8")
    with upstream_git.scratch() as folder:
        upstream_git.make_branches(repo, folder, {b.name: b.tip for b in made})
    return replace(result, branches=tuple(made), written=True)


# --- the base


def _look(repo: Repo, request: Request) -> _Base:
    name = request.base or "HEAD"
    commit = upstream_git.commit_of(repo, name)
    everything = series.shipped()
    project, folder, version_file = _layout(repo, commit, name, everything, request.project)
    package = folder + project.package.replace(".", "/")
    if not request.base and (dirty := upstream_git.changed(repo, package)):
        raise UsageError(
            f"{', '.join(dirty[:3])} in {upstream_git.top_of(repo)} differs from HEAD: commit that, or leave "
            "it out with --base HEAD (or with a tag or branch of upstream's, which a pull request wants)"
        )
    version, note = read_version(version_file)
    if not version:
        raise EnvironmentRefuses(f"{folder}{project.version_file} at {name} states no version: {note}")
    root = upstream_git.top_of(repo) / folder
    git = Git(commit, False)
    install = Install(project.name, project.distribution, version, root, "checkout", False, True, git)
    files = _files(repo, commit, folder)
    optional = named(request.only, everything.of(project.name))
    patches = tuple(
        replace(p, default=True) if p.name in optional else p for p in everything.of(project.name)
    )
    states = tuple(plan.inspect(install, project, patches, _NO_JOURNAL, files))
    contents = _contents(install, patches, states, files)
    return _Base(repo, project, folder, install, patches, states, files, contents, commit, name)


def _layout(
    repo: Repo, commit: str, name: str, everything: series.Series, wanted: str
) -> tuple[Project, str, bytes]:
    """The project that the commit holds, the folder of its packages, and its version file."""
    names = [p.name for p in everything.projects]
    if wanted and wanted not in names:
        raise UsageError(f"no project is called {wanted!r}; there are: {', '.join(names)}")
    found = [
        (project, folder, entry.content)
        for project in everything.projects
        for folder in _FOLDERS
        if (entry := upstream_git.read(repo, commit, folder + project.version_file))
    ]
    for match in found:
        if match[0].name == wanted or (not wanted and len(found) == 1):
            return match
    if wanted:
        project = everything.project(wanted)
        there = f"; it is {found[0][0].name}'s" if found else f": is it a clone of {project.upstream}?"
        raise EnvironmentRefuses(
            f"{upstream_git.top_of(repo)} at {name} has no {project.version_file}{there}"
        )
    what = "several projects" if found else "none of the projects"
    raise EnvironmentRefuses(
        f"{upstream_git.top_of(repo)} at {name} holds {what} ({', '.join(names)}): name one with --project"
    )


def _files(repo: Repo, commit: str, folder: str) -> Files:
    """A reader of the commit's files below the import root."""

    @cache
    def file(path: str) -> File:
        entry = upstream_git.read(repo, commit, folder + path)
        if entry is None:
            return File(path, None, None, f"there is no {path}")
        try:
            return File(path, entry.content, parse(entry.content))
        except Unreadable as error:
            return File(path, entry.content, None, f"{path}: {error}")

    return file


def _contents(
    install: Install, patches: Sequence[Patch], states: Sequence[PatchState], files: Files
) -> Contents:
    @cache
    def contents(names: frozenset[str]) -> Mapping[str, bytes]:
        wanted = [s for s in states if s.patch.name in names]
        try:
            changes = plan.changes(install, patches, wanted, _NO_JOURNAL, files, __version__)
        except plan.Unplannable as error:
            raise CannotApply(f"{', '.join(sorted(names))} on {install.version}: {error}") from error
        return {change.path: change.new for change in changes}

    return contents


# --- what is to be done


def _asked(base: _Base, request: Request) -> list[Patch]:
    """The patches that are meant, and those of the project that they require."""
    only = named(request.only, base.patches)
    chosen = {p.name for p in base.patches if not only or p.name in only}
    before: set[str] = set()
    while before != chosen:
        before = set(chosen)
        chosen |= {name for p in base.patches if p.name in before for name in series.requirements(p)}
    return [p for p in base.patches if p.name in chosen]


def _branches(base: _Base, request: Request, signature: str) -> list[Branch]:
    asked = _asked(base, request)
    states = {s.patch.name: s for s in base.states}
    wrong = [s for p in asked if (s := states[p.name]).state.is_error or s.in_doubt]
    if wrong:
        reasons = "".join(f"\n  {s.patch.name}: {s.reason}" for s in wrong)
        raise CannotApply(f"not for {base.install.version} as it is at {base.name}:{reasons}")
    needed = _in_order([p for p in asked if states[p.name].state is State.NEEDED])
    if request.branch:
        return [_branch(base, request.branch, needed, needed, signature)] if needed else []
    only = named(request.only, base.patches)
    return [
        _branch(base, f"cpfix/{p.id}", [*_below(p, needed), p], [p], signature)
        for p in needed
        if not only or p.name in only
    ]


def _in_order(patches: Sequence[Patch]) -> list[Patch]:
    """The patches, each behind those that it requires; otherwise as they come."""
    left, done = list(patches), list[Patch]()
    while left:
        names = {p.name for p in left}
        free = [p for p in left if not names.intersection(series.requirements(p))]
        done += free[:1] or left
        left = [p for p in left if p not in done]
    return done


def _below(patch: Patch, needed: Sequence[Patch]) -> list[Patch]:
    """The patches among `needed` that this one requires, directly or through others, in order."""
    wanted: set[str] = set()
    todo = [patch]
    while todo:
        names = set(series.requirements(todo.pop())) - wanted
        wanted |= names
        todo += [p for p in needed if p.name in names]
    return [p for p in needed if p.name in wanted and p != patch]


def _branch(base: _Base, name: str, stack: Sequence[Patch], own: Sequence[Patch], signature: str) -> Branch:
    names = [p.name for p in stack]
    contents = [base.contents(frozenset(names[:n])) for n in range(len(stack) + 1)]
    steps = zip(stack, contents, contents[1:], strict=False)
    commits = tuple(_commit(base, p, old, new, signature) for p, old, new in steps)
    before, after = contents[-1 - len(own)], contents[-1]
    old = {row for path in after for row in _rows(before.get(path) or base.files(path).raw or b"")}
    added = [row for content in after.values() for row in _rows(content) if row not in old]
    added += [row for c in commits[-len(own) :] for e in c.tests for row in _rows(e.content)]
    return Branch(name, commits, commits[-len(own) :], max(map(len, added), default=0))


def _rows(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()


def _commit(
    base: _Base, patch: Patch, old: Mapping[str, bytes], new: Mapping[str, bytes], signature: str
) -> Commit:
    entries = tuple(
        _entry(base, base.folder + path, content) for path, content in new.items() if old.get(path) != content
    )
    return Commit(patch, pull_request.message(patch, signature), entries, tuple(_tests(base, patch)))


def _entry(base: _Base, path: str, content: bytes) -> Entry:
    there = upstream_git.read(base.repo, base.commit, path)
    return Entry(path, content, there.mode if there else "100644")


def _tests(base: _Base, patch: Patch) -> Iterable[Entry]:
    number = plan.release(base.install.version)
    variants = {"", *(e.variant for e in plan.edits_for(patch, base.install.version, base.files))}
    for test in patch.tests:
        if number is None or not test.versions.contains(number, prereleases=True):
            continue
        if test.variant not in variants:
            continue
        if upstream_git.read(base.repo, base.commit, test.path):
            raise CannotApply(
                f"{base.name} has a {test.path} of its own, where the test of {patch.name} would go"
            )
        yield Entry(test.path, test.text.encode())


# --- doing it


def _folder(parent: Path | None, branch: str) -> Path | None:
    if parent is None:
        return None
    folder = parent / branch.replace("/", "-")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--format-patch: {folder} is not empty, and git am would take old files as well")
    return folder


def _write(repo: Repo, base: str, branches: Sequence[Branch]) -> list[Branch]:
    """Make the commits; branches with the same commits below share them."""
    made: dict[tuple[str, ...], str] = {(): base}
    with upstream_git.scratch() as folder:
        for branch in branches:
            for n, commit in enumerate(branch.commits):
                below = tuple(c.patch.name for c in branch.commits[:n])
                key = (*below, commit.patch.name)
                if key not in made:
                    parent = made[below]
                    made[key] = upstream_git.commit(repo, folder, parent, commit.files, commit.message)
    return [replace(b, tip=made[tuple(c.patch.name for c in b.commits)]) for b in branches]


def _facts(base: _Base, branch: Branch, signed_off: bool) -> pull_request.Facts:
    own = tuple(c.patch for c in branch.own)
    needs = {name for p in own for name in series.requirements(p)}
    return pull_request.Facts(
        upstream=base.project.upstream,
        branch=branch.name,
        base=base.name,
        commit=base.commit,
        version=base.install.version,
        own=own,
        below=tuple(c.patch for c in branch.commits if c.patch not in own),
        edits=tuple(plan.edits_for(p, base.install.version, base.files) for p in own),
        sources=tuple(dict.fromkeys(e.path for c in branch.own for e in c.entries)),
        tests=tuple(e.path for c in branch.own for e in c.tests),
        longest_line=branch.longest_line,
        signed_off=signed_off,
        folder=base.folder,
        elsewhere=tuple(
            p for p in series.shipped().patches if p.name in needs and p.project != base.project.name
        ),
        outdated=tuple(dict.fromkeys(test for p in own for test in _outdated(base, p))),
    )


def _outdated(base: _Base, patch: Patch) -> Iterable[str]:
    number = plan.release(base.install.version)
    for known in patch.outdated:
        if number is not None and known.versions.contains(number, prereleases=True):
            there = upstream_git.read(base.repo, base.commit, known.path)
            source = there.content.decode(errors="replace") if there else ""
            yield from pull_request.test_ids(known.path, source, known.names)
