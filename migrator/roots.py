"""What `--root DIR` means: the folders that would have to be on the path to import from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from migrator.model import UsageError
from migrator.pythonpath import SITE_NAMES, SearchPath, expand, is_file, is_folder, names_in

_PREFIX = tuple(
    f"{lib}/{name}" for lib in ("lib/python3*", "lib64/python3*", "local/lib/python3*") for name in SITE_NAMES
)


def search_roots(roots: Sequence[Path], packages: Sequence[str]) -> SearchPath:
    """The search path of the given roots, in their order, editable installs followed.

    A root is a site-packages folder, a checkout (with or without `src/`), an environment prefix, or a folder
    of checkouts. Raises `UsageError` for one that is no folder, or lies inside a package.
    """
    entries: list[Path] = []
    for root in roots:
        if not is_folder(root):
            what = "is not a folder" if is_file(root) else "does not exist"
            raise UsageError(f"--root {root} {what}")
        entries += _entries(root.absolute(), packages)
    sites = [entry for entry in dict.fromkeys(entries) if _is_site(entry)]
    return expand([str(entry) for entry in dict.fromkeys(entries)], sites)


def _entries(root: Path, packages: Sequence[str]) -> list[Path]:
    found = _checkout(root, packages)
    if found or _is_site(root):
        return found or [root]
    if found := _prefix(root):
        return found
    if inside := _enclosing(root, packages):
        raise UsageError(f"--root {root} lies inside a package; give the folder above it: --root {inside}")
    return [entry for name in names_in(root) for entry in _child(root / name, packages)]


def _child(folder: Path, packages: Sequence[str]) -> list[Path]:
    return _checkout(folder, packages) or ([folder] if folder.name in SITE_NAMES else [])


def _checkout(folder: Path, packages: Sequence[str]) -> list[Path]:
    """The import roots in a checkout, or in a site-packages folder with the packages in it."""
    return [entry for entry in (folder, folder / "src") if any(_holds(entry, name) for name in packages)]


def _holds(entry: Path, package: str) -> bool:
    return is_file(entry.joinpath(*package.split("."), "__init__.py"))


def _prefix(root: Path) -> list[Path]:
    """The site folders of an environment; `lib64` is often a link to `lib`."""
    found = [folder for pattern in _PREFIX for folder in sorted(root.glob(pattern)) if is_folder(folder)]
    return list({folder.resolve(): folder for folder in reversed(found)}.values())[::-1]


def _enclosing(folder: Path, packages: Sequence[str]) -> Path | None:
    """The import root above `folder`, if it is one of the packages or inside it, or their namespace."""
    for package in packages:
        top = package.split(".")[0]
        for above in folder.parents:
            if _holds(above, package) and folder.is_relative_to(above / top):
                return above
    return None


def _is_site(folder: Path) -> bool:
    return folder.name in SITE_NAMES or next(folder.glob("*.dist-info"), None) is not None
