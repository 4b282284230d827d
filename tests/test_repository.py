"""read_git on repositories of every kind that a checkout may be."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from migrator import repository
from migrator.model import Git
from migrator.repository import read_git

FILE = "nemo/package_info.py"


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
    run = subprocess.run(
        ["git", "-C", str(folder), *settings, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return run.stdout.strip()


def make(folder: Path, *init: str, below: str = "") -> Path:
    """A repository with one commit that holds the package, below the folder `below`."""
    (folder / below / "nemo").mkdir(parents=True)
    (folder / below / FILE).write_text("MAJOR = 1\n")
    git(folder, "init", "-q", "-b", "main", *init)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def read(root: Path) -> tuple[Git | None, tuple[str, ...]]:
    return read_git(root, "nemo", FILE)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make(tmp_path / "NeMo")


def test_no_repository(tmp_path: Path) -> None:
    assert read(tmp_path) == (None, ())


def test_clean_and_changed(repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    assert read(repo) == (Git(head, False), ())
    (repo / "README.md").write_text("untracked, and outside the package")
    assert read(repo) == (Git(head, False), ())
    (repo / FILE).write_text("MAJOR = 2\n")
    assert read(repo) == (Git(head, True), ())


def test_a_change_elsewhere_in_the_repository_is_none_of_the_package(repo: Path) -> None:
    (repo / "setup.py").touch()
    git(repo, "add", "setup.py")
    assert read(repo) == (Git(git(repo, "rev-parse", "HEAD"), False), ())


def test_a_package_deep_in_the_repository(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", below="deep/src")
    assert read(repo / "deep/src")[0] == Git(git(repo, "rev-parse", "HEAD"), False)


@pytest.mark.parametrize(
    "command",
    [
        ["pack-refs", "--all"],
        ["checkout", "-q", "--detach"],
        ["symbolic-ref", "refs/heads/x", "refs/heads/main"],
    ],
)
def test_where_head_may_point(command: list[str], repo: Path) -> None:
    git(repo, *command)
    if command[0] == "symbolic-ref":
        git(repo, "symbolic-ref", "HEAD", "refs/heads/x")
    assert read(repo) == (Git(git(repo, "rev-parse", "HEAD"), False), ())


def test_an_unborn_branch_has_no_commit(repo: Path) -> None:
    git(repo, "checkout", "-q", "--orphan", "new")
    assert read(repo) == (Git("", True), ())


def test_a_worktree(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / FILE).write_text("MAJOR = 3\n")
    git(tmp_path / "side", "commit", "-qam", "two")
    git(repo, "pack-refs", "--all")
    side, main = git(tmp_path / "side", "rev-parse", "HEAD"), git(repo, "rev-parse", "HEAD")
    assert side != main
    assert (read(tmp_path / "side"), read(repo)) == ((Git(side, False), ()), (Git(main, False), ()))


def test_a_submodule(repo: Path, tmp_path: Path) -> None:
    outer = make(tmp_path / "outer")
    git(outer, "submodule", "--quiet", "add", str(repo), "3rdparty/NeMo")
    assert read(outer / "3rdparty/NeMo") == (Git(git(repo, "rev-parse", "HEAD"), False), ())


def test_a_submodule_copied_without_its_repository_is_said(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: ../.git/modules/NeMo\n")
    found, notes = read(tmp_path)
    assert found is None
    assert "which is no git folder: the commit is not known" in notes[0]


def test_an_environment_that_a_repository_ignores_is_no_checkout(repo: Path) -> None:
    site = repo / ".venv/lib/python3.12/site-packages"
    (site / "nemo").mkdir(parents=True)
    (site / FILE).write_text("MAJOR = 1\n")
    assert read(site) == (None, ())


def test_a_path_that_ends_like_the_packages_is_not_the_package(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", below="vendor")
    (repo / "nemo").mkdir()
    (repo / FILE).touch()
    assert read(repo) == (None, ())


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("how", ["version 4", "split", "sparse"])
def test_an_index_that_is_no_plain_list(how: str, tracked: bool, repo: Path) -> None:
    other = repo / "other"
    (other / "nemo").mkdir(parents=True)
    (other / FILE).touch()
    (repo / "nemo/package.py").touch()
    git(repo, "add", "nemo")
    git(repo, "commit", "-qm", "two")
    if how == "version 4":
        git(repo, "update-index", "--index-version", "4")
    elif how == "split":
        git(repo, "update-index", "--split-index")
        git(repo, "checkout", "-q", "-b", "side")
    else:
        git(repo, "sparse-checkout", "set", "--cone", "--sparse-index")
        (repo / "nemo").mkdir(exist_ok=True)
        (repo / FILE).write_text("MAJOR = 1\n")
    found, _ = read(repo if tracked else other)
    assert (found.head if found else None) == (git(repo, "rev-parse", "HEAD") if tracked else None)


def test_a_long_index_version_3(repo: Path) -> None:
    (repo / "nemo/new.py").touch()
    git(repo, "add", "--intent-to-add", "nemo/new.py")
    assert (repo / ".git/index").read_bytes()[4:8] == b"\0\0\0\3"
    assert read(repo)[0] == Git(git(repo, "rev-parse", "HEAD"), True)


def test_another_owners_repository_is_known_by_its_commit_only(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(repo, "rev-parse", "HEAD")
    real = shutil.which("git")
    script = tmp_path / "bin/git"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {real} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    found, notes = read(repo)
    assert found == Git(head, None)
    assert f"git config --global --add safe.directory {repo}" in notes[0]


def test_without_git_the_commit_is_known_still(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(repo, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    found, notes = read(repo)
    assert found == Git(head, None)
    assert "git cannot be run (No such file or directory)" in notes[0]


def test_a_git_that_hangs_or_fails(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(repo, "rev-parse", "HEAD")
    script = tmp_path / "bin/git"
    script.parent.mkdir()
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(repository, "TIMEOUT", 0.2)
    for text, said in (
        ("exec sleep 60", "took longer than 0.2 s"),
        ("echo bad index >&2; exit 128", "git says: bad index"),
    ):
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        found, notes = read(repo)
        assert found == Git(head, None)
        assert said in notes[0]


def test_the_users_git_environment_does_not_redirect(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(repo, "rev-parse", "HEAD")
    other = make(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    (repo / FILE).write_text("MAJOR = 2\n")
    assert read(repo) == (Git(head, True), ())


def test_looking_starts_no_program_of_the_repository_and_writes_nothing(repo: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    hook.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(hook))
    (repo / FILE).touch()
    before = {file: file.read_bytes() for file in (repo / ".git").rglob("*") if file.is_file()}
    assert read(repo)[0] is not None
    assert not (tmp_path / "ran").exists()
    assert before == {file: file.read_bytes() for file in (repo / ".git").rglob("*") if file.is_file()}


def test_an_empty_git_folder_is_no_repository(repo: Path) -> None:
    inner = repo / "inner"
    (inner / ".git").mkdir(parents=True)
    (inner / "nemo").mkdir()
    (inner / FILE).touch()
    git(repo, "add", "-f", f"inner/{FILE}")
    assert read(inner)[0] == Git(git(repo, "rev-parse", "HEAD"), True)
