"""Git repositories in the shape of upstream's, made of the locked wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fixtures import fetch
from tests.sandbox import PACKAGES, make_sandbox

FOLDERS = {"nemo": "", "megatron-core": "", "megatron-bridge": "src"}
TREES = Path(fetch.__file__).with_name("trees")
WHO = ("-c", "user.name=Ada Tester", "-c", "user.email=ada@example.org")


def git(repo: Path, *arguments: str, check: bool = True) -> str:
    """What git says, on settings of nobody's."""
    done = subprocess.run(
        ["git", *WHO, "-C", str(repo), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """The environment without the user's git settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def make_clone(folder: Path, project: str, version: str, extra: Iterable[str] = ()) -> Path:
    """A repository with one commit, the tag `v<version>` and an identity, and the files that patches name.

    A version that is a git tag only is its look-alike in `fixtures/trees`.
    """
    packages = folder / FOLDERS[project]
    packages.mkdir(parents=True, exist_ok=True)
    package = PACKAGES[project].partition("/")[0]
    look_alike = TREES / f"{project.replace('-', '_')}-{version}"
    if look_alike.exists():
        shutil.copytree(look_alike / package, packages / package)
    else:
        site = make_sandbox(folder / "unpacked", {project: version}, extra=extra)
        (site / package).rename(packages / package)
        shutil.rmtree(folder / "unpacked")
    (folder / "README.md").write_text("An upstream project.\n")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "Ada Tester")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", f"Release {version}")
    git(folder, "tag", f"v{version}")
    return folder


def tree(repo: Path, commit: str) -> dict[str, bytes]:
    """The content of every file of a commit, by posix path."""
    names = git(repo, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).split("\0")
    return {name: blob(repo, commit, name) for name in names if name}


def blob(repo: Path, commit: str, path: str) -> bytes:
    """A file of a commit as it is stored."""
    command = ["git", "-C", str(repo), "cat-file", "blob", f"{commit}:{path}"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def branches(repo: Path) -> list[str]:
    """The names of all branches."""
    return git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()


def files(folder: Path, skip: Iterable[str] = (".git", ".cpfix")) -> dict[str, bytes]:
    """The content of every file of a folder, by posix path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(skip) & set(path.relative_to(folder).parts)
    }


@cache
def wheel(project: str, version: str) -> Path:
    """The unpacked wheel. Read it, never write into it."""
    return fetch.path(project, version)
