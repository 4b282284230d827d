"""The git of `export`: reads and writes objects and branches, never a work tree or an index of the user's.

Commits are made from blobs in a scratch index, so that no checkout, hook, filter or line-end setting of the
repository has a say in what they hold. Shallow, partial and bare clones and linked work trees do as well.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from migrator.model import EnvironmentRefuses, UsageError

if TYPE_CHECKING:
    from git import Repo

# What a user's settings could change in what is read, written or formatted.
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.splitIndex=false",
    "core.quotePath=true",
    "i18n.commitEncoding=utf-8",
    "i18n.logOutputEncoding=utf-8",
    "user.useConfigOnly=true",
    "format.signOff=false",
    "format.notes=false",
    "format.useAutoBase=false",
)


@dataclass(frozen=True)
class Entry:
    """A file of a commit."""

    path: str  # posix path below the top of the repository
    content: bytes = field(repr=False)
    mode: str = "100644"


def opened(folder: Path) -> Repo:
    """The repository around `folder`. Raises `UsageError`, or `EnvironmentRefuses` where git can't be run."""
    try:
        import git
    except ImportError as error:  # GitPython looks for git when it is imported
        raise EnvironmentRefuses(f"export needs git: {str(error).splitlines()[0]}") from error
    try:
        repo = git.Repo(folder, search_parent_directories=True)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise UsageError(f"--repo {folder} is no git repository: clone the upstream one first") from error
    # a GIT_DIR in the environment would mean another repository to git than to GitPython
    own = {"GIT_DIR": str(repo.git_dir), "GIT_INDEX_FILE": str(Path(repo.git_dir, "index"))}
    repo.git.update_environment(**own, GIT_TERMINAL_PROMPT="0", LC_ALL="C")
    if repo.working_tree_dir:
        repo.git.update_environment(GIT_WORK_TREE=str(repo.working_tree_dir))
    return repo


def top_of(repo: Repo) -> Path:
    """The top of the work tree; of a bare repository, its folder."""
    return Path(repo.working_tree_dir or repo.git_dir)


def commit_of(repo: Repo, ref: str) -> str:
    """The full hash of the commit that `ref` means. Raises `UsageError` with what to do."""
    asked = f"{ref}^{{commit}}"
    status, out, _ = _run(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", asked)
    if status == 0 and (lines := out.decode().split()):
        return lines[-1]
    if ref == "HEAD":
        raise UsageError(f"{top_of(repo)} has no commit yet: name a tag, branch or commit with --base")
    names = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/tags", "refs/heads", "refs/remotes")
    near = difflib.get_close_matches(ref, names.decode(errors="replace").split(), n=3)
    depth = "--depth 1 " if git(repo, "rev-parse", "--is-shallow-repository").strip() == b"true" else ""
    hint = f"there is {', '.join(near)}; " if near else ""
    raise UsageError(
        f"{top_of(repo)} has no tag, branch or commit {ref!r}: {hint}"
        f"git -C {top_of(repo)} fetch {depth}origin tag {ref} brings a tag of upstream's"
    )


def read(repo: Repo, commit: str, path: str) -> Entry | None:
    """A regular file of a commit, as it is stored. None where there is none at `path`."""
    listing = git(repo, "ls-tree", "-z", "--full-tree", commit, "--", path)
    if not listing:
        return None
    meta, _, name = listing.rstrip(b"\0").partition(b"\t")
    mode, kind, blob = meta.decode().split()
    if kind != "blob" or mode == "120000" or name.decode(errors="surrogateescape") != path:
        return None
    return Entry(path, git(repo, "cat-file", "blob", blob), mode)


def changed(repo: Repo, path: str) -> list[str]:
    """Tracked files below `path` that differ from HEAD in the work tree or its index."""
    if not repo.working_tree_dir:
        return []
    out = git(
        repo, "--no-optional-locks", "status", "--porcelain", "-z", "--no-renames", "-uno", "--", f":/{path}"
    )
    return [row[3:] for row in out.decode(errors="replace").split("\0") if row]


def committer(repo: Repo) -> str:
    """`Name <mail>`, as git's settings have it. Raises `EnvironmentRefuses` where they don't."""
    for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
        status, out, _ = _run(repo, "var", who)
        if status:
            raise EnvironmentRefuses(
                "git does not know who makes the commits: git config --global user.name NAME, "
                "git config --global user.email MAIL"
            )
    return out.decode(errors="replace").rpartition(">")[0] + ">"


def check_free(repo: Repo, branches: Sequence[str]) -> None:
    """Raise `UsageError` unless all of these branches can be made."""
    for name in branches:
        if _run(repo, "check-ref-format", "--branch", name)[0]:
            raise UsageError(f"{name!r} is no name for a branch")
        if _run(repo, "show-ref", "--verify", "--quiet", f"refs/heads/{name}")[0] == 0:
            raise UsageError(
                f"there is a branch {name} in {top_of(repo)}: git -C {top_of(repo)} branch -D {name} removes "
                "it, --branch NAME makes one series branch of another name"
            )


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for an index and blobs that goes away afterwards."""
    with tempfile.TemporaryDirectory(prefix="cpfix-export-") as name:
        yield Path(name)


def commit(repo: Repo, folder: Path, parent: str, entries: Sequence[Entry], message: str) -> str:
    """Make a commit that puts `entries` on top of `parent`; no branch moves. `folder` is a `scratch`."""
    index = {"GIT_INDEX_FILE": str(folder / "index")}
    git(repo, "read-tree", parent, environment=index)
    for entry in entries:
        (folder / "blob").write_bytes(entry.content)
        blob = git(repo, "hash-object", "-w", "--no-filters", "--", str(folder / "blob")).decode().strip()
        what = f"{entry.mode},{blob},{entry.path}"
        git(repo, "update-index", "--add", "--cacheinfo", what, environment=index)
    tree = git(repo, "write-tree", "--missing-ok", environment=index).decode().strip()
    (folder / "message").write_text(message, encoding="utf-8")
    made = git(repo, "commit-tree", tree, "-p", parent, "-F", str(folder / "message"))
    return made.decode().strip()


def make_branches(repo: Repo, folder: Path, tips: Mapping[str, str]) -> None:
    """Make all of these branches, or none. Raises `EnvironmentRefuses`."""
    file = folder / "refs"
    rows = "".join(f"create refs/heads/{name} {tip}\n" for name, tip in tips.items())
    file.write_text(rows, encoding="utf-8")
    with file.open("rb") as commands:
        git(repo, "update-ref", "-m", "cpfix export", "--stdin", stdin=commands)


def format_patch(repo: Repo, base: str, tip: str, into: Path) -> tuple[Path, ...]:
    """Write the commits between `base` and `tip` as files that `git am` takes."""
    plain = "--no-signature --no-attach --no-cover-letter --no-thread --no-color --no-renames"
    exact = "--no-ext-diff --no-textconv --binary --full-index --src-prefix=a/ --dst-prefix=b/"
    names = "--subject-prefix=PATCH --suffix=.patch --output-directory"
    command = ["format-patch", *f"{plain} {exact} {names}".split(), str(into.absolute())]
    out = git(repo, *command, f"{base}..{tip}")
    return tuple(Path(row) for row in out.decode(errors="surrogateescape").splitlines())


def git(
    repo: Repo, *arguments: str, environment: Mapping[str, str] | None = None, stdin: BinaryIO | None = None
) -> bytes:
    """What git says. Raises `EnvironmentRefuses` where it fails."""
    status, out, error = _run(repo, *arguments, environment=environment, stdin=stdin)
    if status:
        said = error.strip().splitlines()[-1] if error.strip() else f"exit status {status}"
        if "dubious ownership" in error or "unsafe repository" in error:
            said = (
                f"the repository has another owner: git config --global --add safe.directory {top_of(repo)}"
            )
        raise EnvironmentRefuses(f"git {arguments[0]} in {top_of(repo)}: {said}")
    return out


def _run(
    repo: Repo, *arguments: str, environment: Mapping[str, str] | None = None, stdin: BinaryIO | None = None
) -> tuple[int, bytes, str]:
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    command = [str(repo.git.GIT_PYTHON_GIT_EXECUTABLE), *settings, *arguments]
    execute: Any = repo.git.execute
    status, out, error = execute(
        command,
        istream=stdin,
        with_extended_output=True,
        with_exceptions=False,
        stdout_as_string=False,
        strip_newline_in_stdout=False,
        env=dict(environment or {}),
    )
    return int(status), bytes(out), str(error)
