"""Where each project is really installed: every copy, and which one `import` finds. Nothing is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from migrator.dist_info import Dist, canonical, distributions
from migrator.interpreter import running_search_path, search_path_of
from migrator.model import EnvironmentRefuses, Install, Project
from migrator.pythonpath import SITE_NAMES, SearchPath, copies, expand, find, hidden_by, is_file, is_folder
from migrator.repository import read_git
from migrator.roots import search_roots
from migrator.version_file import read_version, same_version

__all__ = ["find_installs", "search_path_of"]


@dataclass(frozen=True)
class _Copy:
    """A package folder on the path."""

    root: Path  # import root, resolved
    folders: tuple[Path, ...]  # the package folder, as each path entry that leads here spells it
    editable: bool  # it is on the path by an editable install


def find_installs(
    projects: Sequence[Project], roots: Sequence[Path] = (), search_path: Sequence[str] | None = None
) -> list[Install]:
    """Every copy of each project that can be reached, in the order of `projects` and then of the path.

    The path is what the `roots` (site-packages folders, checkouts, environment prefixes, folders of
    checkouts) make in their order; without them `search_path`, a list like `sys.path`, or that of the running
    interpreter. `imports` is true for the copy that Python would import with that path, at most one each.

    Raises `UsageError` for a root that does not exist, is no folder or lies inside a package, and
    `EnvironmentRefuses` for an editable install whose folder is not named like the package.
    """
    if roots:
        path = search_roots(roots, [project.package for project in projects])
    else:
        path = expand(running_search_path() if search_path is None else search_path)
    names = {canonical(project.distribution) for project in projects}
    dists = {place: distributions(place, names) for place in path.places if isinstance(place, Path)}
    installs: list[Install] = []
    for project in projects:
        found = _copies(project, path)
        dists |= {copy.root: distributions(copy.root, names) for copy in found if copy.root not in dists}
        why_not = _why_not(project.package, [copy.root for copy in found], path)
        installs += [_install(project, copy, why_not[copy.root], dists) for copy in found]
    return installs


def _copies(project: Project, path: SearchPath) -> list[_Copy]:
    found: dict[Path, _Copy] = {}
    for folder, editable in copies(project.package, path):
        if not is_folder(folder):
            continue
        root = _root(project.package, folder)
        if not is_file(folder / "__init__.py") and not is_file(root / project.version_file):
            continue  # a folder that happens to have the name
        seen = found.get(root, _Copy(root, (), False))
        folders = tuple(dict.fromkeys((*seen.folders, folder)))
        found[root] = _Copy(root, folders, seen.editable or editable)
    return list(found.values())


def _root(package: str, folder: Path) -> Path:
    """The resolved import root of a package folder, whose last parts are the package's name."""
    parts = tuple(package.split("."))
    # A folder that a symlink renames keeps the name that `import` uses.
    for spelling in (folder.resolve(), folder):
        if spelling.parts[-len(parts) :] == parts:
            return spelling.parents[len(parts) - 1].resolve()
    raise EnvironmentRefuses(
        f"{package} is imported from {folder}, a folder of another name; "
        f"reinstall it from a checkout where it is {'/'.join(parts)}"
    )


def _why_not(package: str, roots: Sequence[Path], path: SearchPath) -> dict[Path, str]:
    """For each import root why `import` does not find its copy of `package`; "" for the one that it finds."""
    folders = {root.joinpath(*package.split(".")).resolve(): root for root in roots}
    found = find(package, path)
    locations = [place for place in found.locations if isinstance(place, Path)] if found else []
    # A namespace package may have a folder without any of its files in front.
    winner = next((place for place in locations if place.resolve() in folders), None)
    reasons = dict.fromkeys(roots, f"not imported: {winner} comes first on the path")
    for folder, root in folders.items():
        if winner and folder == winner.resolve():
            reasons[root] = ""
        elif hiding := hidden_by(package, folder, path):
            reasons[root] = (
                f"cannot be imported: {hiding} hides it; remove that file or take its folder off the path"
            )
        elif not winner:
            reasons[root] = f"cannot be imported: Python does not find {package} on this path"
    return reasons


def _install(project: Project, copy: _Copy, why_not: str, dists: Mapping[Path, Sequence[Dist]]) -> Install:
    package = project.package.replace(".", "/")
    folder, version_file = copy.root / package, copy.root / project.version_file
    name = canonical(project.distribution)
    beside = [dist for dist in dists[copy.root] if dist.name == name]
    pointing = [dist for dist in chain(*dists.values()) if dist.name == name and _points_to(dist, copy.root)]
    git, git_notes = read_git(copy.root, package, project.version_file)
    version, version_note = _version(version_file)
    if any(dist.lists(package) for dist in beside):
        kind = "wheel"
    elif copy.editable or pointing:
        kind = "editable"
    else:
        kind = "checkout" if git else "copy"
    notes = (
        why_not,
        version_note,
        *_claims(version, [*beside, *pointing]),
        *_links(copy, version_file),
        *git_notes,
    )
    return Install(
        project=project.name,
        distribution=project.distribution,
        version=version,
        root=copy.root,
        kind=kind,
        imports=not why_not,
        writable=os.access(folder, os.W_OK) and os.access(copy.root, os.W_OK),
        git=git,
        notes=tuple(dict.fromkeys(note for note in notes if note)),
    )


def _points_to(dist: Dist, root: Path) -> bool:
    """Whether an editable install's project folder is `root`, or holds it (`src/`)."""
    folder = dist.project_folder()
    if folder is None or not root.is_relative_to(folder):
        return False
    # An environment inside the project folder holds other copies.
    return not any(part in SITE_NAMES for part in root.relative_to(folder).parts)


def _version(file: Path) -> tuple[str, str]:
    try:
        version, problem = read_version(file.read_bytes())
    except OSError as error:
        version, problem = "", f"it cannot be read ({error.strerror})"
    if not problem:
        return version, ""
    return version, f"{'version not exact' if version else 'version unknown'}: {file}: {problem}"


def _claims(version: str, dists: Sequence[Dist]) -> Iterator[str]:
    for dist in dists:
        if version and dist.version and not same_version(version, dist.version):
            yield f"{dist.path} says version {dist.version}, the code says {version}: the code counts"


def _links(copy: _Copy, version_file: Path) -> Iterator[str]:
    """Symlinks and hard links on the way to the files."""
    for folder in copy.folders:
        if folder.resolve() != folder:
            yield f"reached through a symlink: {folder} -> {folder.resolve()}"
    if version_file.is_symlink():
        yield f"files are symlinks: {version_file} -> {version_file.resolve()}"
    elif is_file(version_file) and version_file.stat().st_nlink > 1:
        yield "files are hard-linked (uv cache?): cpfix breaks the link when it writes"
