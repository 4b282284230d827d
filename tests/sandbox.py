"""Site-packages look-alikes with real upstream code in them, to be patched, broken and thrown away."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from fixtures import fetch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATCHES = Path(__file__).parents[1] / "patches"
PACKAGES = {"nemo": "nemo", "megatron-core": "megatron/core", "megatron-bridge": "megatron/bridge"}


def make_sandbox(
    tmp_path: Path, versions: Mapping[str, str], full: bool = False, extra: Iterable[str] = ()
) -> Path:
    """Build `tmp_path/site-packages` from `{"nemo": "2.5.3", ...}` and return it.

    `full=False` copies the dist-info, `__init__.py` and `package_info.py` of each package, every file that a
    patch of the project names, the `__init__.py` files above those, and `extra` (posix paths of files or
    folders); what a release does not have is left out. `full=True` copies everything that pip would install.
    """
    root = tmp_path / "site-packages"
    root.mkdir(parents=True)
    for project, version in versions.items():
        tree = fetch.path(project, version)
        if full:
            shutil.copytree(tree, root, dirs_exist_ok=True)
        else:
            _copy(tree, root, _slim(tree, project, extra))
    return root


def hashes(root: Path) -> dict[str, str]:
    """The sha256 of every file below `root`, by posix path."""
    return {
        file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


def patched_files(project: str) -> frozenset[str]:
    """Every file that the project's patches name, for any version."""
    return _patched_files(PATCHES / project)


@cache
def _patched_files(folder: Path) -> frozenset[str]:
    return frozenset(
        edit["file"]
        for path in folder.glob("*.toml")
        for table in tomllib.loads(path.read_text(encoding="utf-8")).values()
        if isinstance(table, list)
        for edit in table
        if isinstance(edit, dict) and "file" in edit
    )


def _slim(tree: Path, project: str, extra: Iterable[str]) -> set[str]:
    package = PACKAGES[project]
    wanted = {f"{package}/__init__.py", f"{package}/package_info.py", *patched_files(project)}
    wanted |= {info.name for info in tree.glob("*.dist-info")} | set(extra)
    files = {file for name in wanted for file in _files(tree, name)}
    return files | {
        f"{folder.as_posix()}/__init__.py"
        for file in files
        for folder in Path(file).parents
        if (tree / folder / "__init__.py").is_file() and folder.name
    }


def _files(tree: Path, name: str) -> Iterator[str]:
    path = tree / name
    if path.is_dir():
        yield from (file.relative_to(tree).as_posix() for file in path.rglob("*") if file.is_file())
    elif path.is_file():
        yield name


def _copy(tree: Path, root: Path, files: Iterable[str]) -> None:
    for name in files:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / name, target)
