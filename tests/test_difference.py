"""The unified diff, judged by `git apply` itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrator.difference import tree_of, unified
from migrator.model import FileChange

PAIRS = {
    "plain": (b"a\nb\nc\n", b"a\nx\nc\n"),
    "added at the end": (b"a\n", b"a\nb\n"),
    "no line end": (b"a\nb", b"a\nx"),
    "a line end comes": (b"a\nb", b"a\nb\nc\n"),
    "a line end goes": (b"a\nb\n", b"a\nx"),
    "no line end stays": (b"a\n" + b"z\n" * 9 + b"b", b"x\n" + b"z\n" * 9 + b"b"),
    "CRLF": (b"a\r\nb\r\n", b"a\r\nx\r\ny\r\n"),
    "CR": (b"a\rb\r", b"a\rx\r"),
    "mixed": (b"a\r\nb\nc\rd", b"a\r\nx\nc\rd"),
    "byte order mark": (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfa\nx\n"),
    "latin-1": (b"# \xe9\na\n", b"# \xe9\nb\n"),
    "form feed": (b"a\n\x0c\nb\n", b"a\n\x0c\nx\n"),
    "odd separators": ("a\u2028\x85\x1c\nb\n".encode(), "a\u2028\x85\x1c\nx\n".encode()),
    "looks like a header": (b"--- a\n+++ b\n@@ x\n\\ y\n", b"--- a\n+++ c\n@@ x\n\\ y\n"),
    "blanks at the end": (b"a \t\nb\n", b"a \t\nx \n"),
    "from nothing": (b"", b"a\n"),
}


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git in a folder, without anybody's settings."""
    run = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        check=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    return run.stdout


def change(root: Path, path: str, old: bytes, new: bytes) -> FileChange:
    """A change of a file that is on the disk."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(old)
    return FileChange(root, path, old, new, old)


@pytest.mark.parametrize("old_new", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("where", ["plain tree", "repository", "below its top", "name with blanks"])
def test_git_apply_gives_the_same_bytes(tmp_path: Path, old_new: tuple[bytes, bytes], where: str) -> None:
    root = tmp_path / {"below its top": "src", "name with blanks": "my src/é"}.get(where, "")
    planned = change(root, "nemo/é a.py" if where == "name with blanks" else "nemo/a.py", *old_new)
    other = change(root, "nemo/b.py", b"1\n", b"2\n")
    if where != "plain tree":
        git(tmp_path, "init", "--quiet")
    top = tree_of(root)
    git(top, "apply", "--whitespace=nowarn", stdin=unified([planned, other], top))
    assert planned.target.read_bytes() == planned.new
    assert other.target.read_bytes() == b"2\n"
    git(top, "apply", "-R", "--whitespace=nowarn", stdin=unified([planned, other], top))
    assert planned.target.read_bytes() == planned.old


def test_the_top_of_a_tree(tmp_path: Path) -> None:
    root = tmp_path / "repository/src"
    root.mkdir(parents=True)
    assert tree_of(root) == root
    git(tmp_path / "repository", "init", "--quiet")
    assert tree_of(root) == tmp_path / "repository"
    assert tree_of(tmp_path / "repository") == tmp_path / "repository"
    (root / ".git").write_text("gitdir: elsewhere\n")  # a linked work tree
    assert tree_of(root) == root


def test_paths_are_below_the_top(tmp_path: Path) -> None:
    planned = change(tmp_path / "src", "nemo/a.py", b"a\n", b"b\n")
    rows = unified([planned], tmp_path).split(b"\n")
    assert rows[:2] == [b"--- a/src/nemo/a.py", b"+++ b/src/nemo/a.py"]


def test_nothing_changed_is_no_diff(tmp_path: Path) -> None:
    assert unified([], tmp_path) == b""
    assert unified([change(tmp_path, "a.py", b"a\n", b"a\n")], tmp_path) == b""


lines = st.lists(
    st.sampled_from([b"a", b"b", b"", b"a\r", b"\rb", b" ", b"\\", b"-", b"+", b"\xff"]), max_size=12
)


@given(lines, lines, st.booleans(), st.booleans())
def test_any_pair_of_files(
    tmp_path_factory: pytest.TempPathFactory, old: list[bytes], new: list[bytes], one: bool, other: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    old_new = b"\n".join(old) + b"\n" * one, b"\n".join(new) + b"\n" * other
    if b"" in old_new or old_new[0] == old_new[1]:
        return
    planned = change(folder, "a.py", *old_new)
    git(folder, "apply", "--whitespace=nowarn", stdin=unified([planned], folder))
    assert planned.target.read_bytes() == planned.new
