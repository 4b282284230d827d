"""What `import` would find on a search path, worked out from the files alone: nothing is imported.

Follows the import system of CPython for folders (regular packages, namespace packages, `.pth` files) and
setuptools' editable installs. Archives on the path and other import hooks are not looked into.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from itertools import chain
from pathlib import Path

from migrator.editable import HOOK_SUFFIX, Finder, read_finder

SITE_NAMES = ("site-packages", "dist-packages")
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)  # in the order of `import`
_FINDER_MODULE = re.compile(r"\b__editable___\w+_finder\b")

Place = Path | Finder


@dataclass(frozen=True)
class SearchPath:
    """A search path with what its `.pth` files add."""

    places: tuple[Place, ...]  # folders and namespace hooks, in the order in which they are asked
    finders: tuple[Finder, ...]  # editable finders, asked in this order once the places have failed
    sites: tuple[Path, ...]  # the folders whose `.pth` files Python reads
    linked: frozenset[Path]  # folders that a `.pth` file names


@dataclass(frozen=True)
class Found:
    """Where `import` finds a name."""

    locations: tuple[Place, ...]  # the package's `__path__`; empty for a plain module
    init: Path | None  # the file that would run; None for a namespace package


def is_file(path: Path) -> bool:
    """`Path.is_file` that takes an unreadable folder for one without the file, as `import` does."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """`Path.is_dir` that takes an unreadable folder for a missing one, as `import` does."""
    try:
        return path.is_dir()
    except OSError:
        return False


def names_in(folder: Path) -> list[str]:
    """The names of what a folder holds, sorted; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:  # much faster than Path.iterdir
            return sorted(entry.name for entry in entries)
    except OSError:
        return []


def expand(path: Sequence[str], sites: Collection[Path] | None = None) -> SearchPath:
    """Read `path`, a list like `sys.path`, and the `.pth` files of its `sites`.

    Without `sites` the list itself tells them: the site-packages and dist-packages folders behind the
    standard library. One in front of it came from PYTHONPATH, and Python reads no `.pth` files there.
    """
    given: list[Path | str | None] = [
        entry if entry.endswith(HOOK_SUFFIX) else _absolute(entry) for entry in path
    ]
    folders = [entry for entry in given if isinstance(entry, Path)]
    read = {site: tuple(_pth_places(site)) for site in (_sites(folders) if sites is None else sites)}
    finders = [place for places in read.values() for place in places if isinstance(place, Finder)]
    places: list[Place] = []
    for entry in given:
        if isinstance(entry, str):
            places += [finder for finder in finders if finder.placeholder == entry]
        elif entry is not None:
            # What a running interpreter has on its path already keeps its place there.
            places += [entry, *(place for place in read.get(entry, ()) if _is_new(place, given))]
    linked = frozenset(place for found in read.values() for place in found if isinstance(place, Path))
    return SearchPath(_unique(places), tuple(finders), tuple(read), linked)


def find(name: str, path: SearchPath) -> Found | None:
    """Where `import name` finds it; None where it fails. Parents are found first, as `import` does."""
    parent, _, _ = name.rpartition(".")
    places: tuple[Place, ...] = path.places
    if parent:
        above = find(parent, path)
        if above is None:
            return None
        places = above.locations
    return _scan(name, places) or _ask(name, path.finders)


def hidden_by(package: str, folder: Path, path: SearchPath) -> Path | None:
    """The file that keeps `import` from looking at a copy of `package` in `folder`, a resolved path.

    That is a parent's `__init__.py` elsewhere, which makes a regular package of what has to be a namespace,
    or a plain module of the package's or a parent's name.
    """
    parts = package.split(".")
    for depth in range(1, len(parts) + 1):
        found = find(".".join(parts[:depth]), path)
        if found is None or found.init is None:
            continue
        wanted = (folder, *folder.parents)[len(parts) - depth]
        looked = [place.resolve() for place in found.locations if isinstance(place, Path)]
        if not looked or (depth < len(parts) and wanted not in looked):
            return found.init
    return None


def copies(package: str, path: SearchPath) -> Iterator[tuple[Path, bool]]:
    """Each folder where the path may hold `package`, whether Python imports it or not, in the path's order.

    The second value tells whether the folder is on the path by an editable install (or another `.pth` file).
    """
    for place in path.places:
        if isinstance(place, Path):
            yield place.joinpath(*package.split(".")), place in path.linked
        else:
            yield from ((folder, True) for folder in _targets(package, place))
    for finder in path.finders:
        yield from ((folder, True) for folder in _targets(package, finder))


def _is_new(place: Place, given: Collection[Path | str | None]) -> bool:
    if isinstance(place, Finder):
        return bool(place.namespaces) and place.placeholder not in given
    return place not in given


def _scan(name: str, places: Sequence[Place]) -> Found | None:
    """Ask each place in turn: a package or module ends the search, other folders become a namespace."""
    portions: list[Place] = []
    for place in places:
        found = _look(name, place)
        if found and found.init:
            return Found(_package_path(name, found, places), found.init)
        portions += found.locations if found else ()
    return Found(tuple(portions), None) if portions else None


def _look(name: str, place: Place) -> Found | None:
    """What one place has for a name."""
    if isinstance(place, Finder):
        return Found((*_namespace(name, place), place), None) if name in place.namespaces else None
    base = place / name.rpartition(".")[2]
    if init := _module(base / "__init__"):
        return Found((base,), init)
    if module := _module(base):
        return Found((), module)
    return Found((base,), None) if is_folder(base) else None


def _ask(name: str, finders: Sequence[Finder]) -> Found | None:
    """What setuptools' finders answer: a mapped package, or a child of one."""
    parent = name.rpartition(".")[0]
    for finder in finders:
        if name in finder.mapping:
            base = finder.mapping[name]
            init = base / "__init__.py"
            if is_file(init):
                return Found((base,), init)
            if module := _module(base):
                return Found((), module)
        elif parent in finder.mapping and (found := _scan(name, (finder.mapping[parent],))):
            return found
    return None


def _namespace(name: str, finder: Finder) -> tuple[Path, ...]:
    mapped = (finder.mapping[name],) if name in finder.mapping else ()
    return finder.namespaces[name] or mapped


def _targets(package: str, finder: Finder) -> Iterator[Path]:
    """The folders that a finder gives for a package, by its own name or a parent's."""
    parts = package.split(".")
    for depth in range(len(parts), 0, -1):
        name, rest = ".".join(parts[:depth]), parts[depth:]
        for folder in (*finder.namespaces.get(name, ()), finder.mapping.get(name)):
            if folder is not None:
                yield folder.joinpath(*rest)


def _package_path(name: str, found: Found, places: Sequence[Place]) -> tuple[Place, ...]:
    """`__path__` of a regular package: its folder, and the others' too if it is an old-style namespace."""
    if not found.init or not found.locations or found.init.suffix != ".py":
        return found.locations
    if not re.search(rb"\bextend_path\b|\bdeclare_namespace\b", _content(found.init)):
        return found.locations
    others = [other.locations for place in places if (other := _look(name, place))]
    return _unique([*found.locations, *chain.from_iterable(others)])


def _module(stem: Path) -> Path | None:
    """The file that `import` would load for a path without its suffix."""
    files = (stem.with_name(stem.name + suffix) for suffix in _SUFFIXES)
    return next(filter(is_file, files), None) if is_folder(stem.parent) else None


def _sites(folders: Sequence[Path]) -> list[Path]:
    library = next((index for index, folder in enumerate(folders) if is_file(folder / "os.py")), -1)
    return [folder for folder in folders[library + 1 :] if folder.name in SITE_NAMES]


def _pth_places(site: Path) -> Iterator[Place]:
    """What the `.pth` files of a folder put on the path, in the order in which `site` reads them."""
    for file in (name for name in names_in(site) if name.endswith(".pth")):
        for line in _lines(site / file):
            if line.startswith(("import ", "import\t")):
                for module in dict.fromkeys(_FINDER_MODULE.findall(line)):
                    if finder := read_finder(site / f"{module}.py"):
                        yield finder
            elif line.strip() and not line.startswith("#"):
                folder = Path(os.path.normpath(site / line.rstrip()))
                if is_folder(folder):
                    yield folder


def _lines(file: Path) -> list[str]:
    return _content(file).decode("utf-8-sig", errors="surrogateescape").splitlines()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _absolute(entry: str) -> Path | None:
    """An entry of `sys.path` as an absolute folder; "" is the current one. None where that is gone."""
    try:
        return Path(os.path.normpath(entry if Path(entry).is_absolute() else Path.cwd() / entry))
    except OSError:
        return None


def _unique(places: Sequence[Place]) -> tuple[Place, ...]:
    kept: list[Place] = []
    for place in places:
        if place not in kept:
            kept.append(place)
    return tuple(kept)
